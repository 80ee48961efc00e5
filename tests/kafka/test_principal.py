import pytest

from kdissect.kafka.exchanges.principal import principal


@pytest.mark.parametrize(
    ("mechanism", "token", "name"),
    [
        ("PLAIN", b"\0alice\0alice-secret", "alice"),
        ("PLAIN", b"zid\0bob\0", "bob"),
        ("PLAIN", b"alice", None),
        ("PLAIN", b"\0\0x", None),
        ("PLAIN", b"\0\xff\xfe\0x", None),
        ("PLAIN", b"\0" + b"a" * 256 + b"\0x", None),
        ("PLAIN", b"\0a\nb\0x", None),
        ("SCRAM-SHA-256", b"n,,n=user,r=nonce", "user"),
        ("SCRAM-SHA-512", b"n,a=zid,n=a=2Cb=3Dc,r=nonce", "a,b=c"),
        ("SCRAM-SHA-512", b"c=biws,r=nonce,p=proof", None),
        ("SCRAM-SHA-512", b"n,,n=user", None),
        ("OAUTHBEARER", b"n,,\x01auth=Bearer e30.e30.\x01\x01", None),
        ("GSSAPI", b"\0alice\0x", None),
        (None, b"\0alice\0x", None),
        ("PLAIN", b"", None),
    ],
)
def test_names(mechanism, token, name):
    assert principal(mechanism, token) == name
