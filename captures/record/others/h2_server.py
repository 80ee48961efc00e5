"""An application for hypercorn: so many bytes as the path says."""


async def app(scope,receive,send):
    if scope['type']!='http': return
    n=int(scope['path'].strip('/') or 0)
    m=await receive()
    await send({'type':'http.response.start','status':200,'headers':[(b'content-type',b'application/octet-stream')]})
    await send({'type':'http.response.body','body':bytes(i*7%256 for i in range(n))})
