-- What the first pass over a capture learns, and what every later look at a packet (the second pass, a click) reads.
-- Connections are told apart by addresses and ports: in tshark's first pass of two there is no tree, so that no field
-- (tcp.stream) can be asked for.
--
-- A connection: a, ap, b its ends; client_is_a once a request was recognised, until then asker_is_a where one is
-- supposed; a queue of requests that wait for an answer, c correlation ids, k kinds (API key * KINDS + version), f frames,
-- w the place among its frame's messages, from head to tail; tokens while bare SASL tokens are expected; since when the
-- request began that is not whole yet.
local MOST_WAITING = 4096 -- requests of one connection: with one direction captured nothing ever answers them
local KINDS = 32768 -- versions are below it
local connections
-- By frame, in arrays of numbers that the collector has nothing to follow in: direction (true: to the broker) and, of
-- the frame's first message, correlation id, kind, the other message's frame and when the request began. Others are in
-- `more`. forwards: API key and version inside an Envelope request; hidden_in: whether the frame has a bare SASL token;
-- begins: where its first message begins, if not at 0.
local to_broker, corr_of, kind_of, peer_of, began_of, more, forwards, hidden_in, begins
local function forget()
  connections, to_broker, corr_of, kind_of, peer_of, began_of = {}, {}, {}, {}, {}, {}
  more, forwards, hidden_in, begins = {}, {}, {}, {}
end
kafka.init = forget
forget()

-- Most objects live as long as one packet. Lua's own pace spends half of the time collecting them; at these paces some of
-- them stay for long, so that everything is collected whenever MOST_GARBAGE (kilobytes) has gathered.
local MOST_GARBAGE, OFTEN = 307200, 1000
if _VERSION == "Lua 5.2" then collectgarbage("generational") else collectgarbage("setpause", 1000) end
local messages_seen, kept = 0, collectgarbage("count")
local function tidy()
  messages_seen = messages_seen + 1
  if messages_seen % OFTEN == 0 and collectgarbage("count") > kept + MOST_GARBAGE then
    collectgarbage("collect")
    kept = collectgarbage("count")
  end
end

-- The connection of this packet, whether its sender is end a; made where it is not known and `make` is true.
local function connection(pinfo, make)
  local source_port, port = pinfo.src_port, pinfo.dst_port
  local id = source_port < port and source_port * 65536 + port or port * 65536 + source_port
  local list = connections[id]
  local source = pinfo.src
  if list then
    local target = pinfo.dst
    for i = 1, #list do
      local found = list[i]
      if source_port == found.ap and source == found.a and target == found.b then return found, true end
      if port == found.ap and source == found.b and target == found.a then return found, false end
    end
  end
  if not make then return nil end
  if not list then
    list = {}
    connections[id] = list
  end
  local made = {head = 1, tail = 0, c = {}, k = {}, f = {}, w = {}, a = source, b = pinfo.dst, ap = source_port}
  list[#list + 1] = made
  return made, true
end

local function drop_until(st, last)
  for i = st.head, last do st.c[i], st.k[i], st.f[i], st.w[i] = nil, nil, nil, nil end
  st.head = last + 1
end

-- A message of this frame; its place among the frame's messages.
local function remember(frame, corr, kind, peer, began)
  if corr_of[frame] then
    local list = more[frame]
    if not list then
      list = {}
      more[frame] = list
    end
    list[#list + 1] = {corr, kind, peer, began}
    return #list
  end
  corr_of[frame], kind_of[frame], peer_of[frame], began_of[frame] = corr, kind, peer, began
  return 0
end

-- Correlation ids may come twice in one frame: its messages are looked at in their order, each once.
local looked_at, seen = 0, {}
local function recall(frame, corr)
  local list = more[frame]
  if not list then
    if corr_of[frame] == corr then return kind_of[frame], peer_of[frame], began_of[frame] end
    return nil
  end
  if looked_at ~= frame then looked_at, seen = frame, {} end
  for _ = 1, 2 do
    if corr_of[frame] == corr and not seen[0] then
      seen[0] = true
      return kind_of[frame], peer_of[frame], began_of[frame]
    end
    for i = 1, #list do
      local r = list[i]
      if r[1] == corr and not seen[i] then
        seen[i] = true
        return r[2], r[3], r[4]
      end
    end
    seen = {} -- the same packet once more
  end
  return nil
end

-- A request enters the queue. Correlation ids of a connection rise; a login's first request with an id at or below one
-- that waits means that the ports were used again, and what waits belongs to the connection before.
local function ask(st, frame, corr, kind, key, began)
  if st.tail >= st.head and (key == 18 or key == 17) and corr <= st.c[st.tail] then drop_until(st, st.tail) end
  if st.tail - st.head >= MOST_WAITING then drop_until(st, st.head) end
  local place = remember(frame, corr, kind, false, began)
  local tail = st.tail + 1
  st.tail = tail
  st.c[tail], st.k[tail], st.f[tail], st.w[tail] = corr, kind, frame, place
end

-- A response takes its request out of the queue, with all that waited before it: brokers answer in order. Its kind and
-- the request's frame; nil where no request waits for it.
local function answer(st, frame, corr, began)
  local place, tail, ids = st.head, st.tail, st.c
  while place <= tail and ids[place] ~= corr do place = place + 1 end
  if place > tail then return nil end
  local kind, peer, which = st.k[place], st.f[place], st.w[place]
  drop_until(st, place)
  local request_began
  if which == 0 then
    peer_of[peer] = frame
    request_began = began_of[peer]
  else
    local r = more[peer][which]
    r[3] = frame
    request_began = r[4]
  end
  remember(frame, corr, kind, peer, request_began)
  return kind, peer, request_began
end

local function waits(st, corr)
  for i = st.head, st.tail do if st.c[i] == corr then return true end end
  return false
end
