-- What the first pass over a capture learns, and what every later look at a packet (the second pass, a click) reads.
-- Connections are told apart by addresses and ports: in tshark's first pass of two there is no tree, so that no field
-- (tcp.stream) can be asked for.
--
-- A connection: a, ap, b its ends; client_is_a once a request was recognised, until then asker_is_a where one is
-- supposed; first and last of the requests that wait for an answer, and how many; tokens while bare SASL tokens are
-- expected; since when the request began that is not whole yet. Addresses: one object for each, which connections share.
local MOST_WAITING = 4096 -- requests of one connection: with one direction captured nothing ever answers them
local KINDS = 32768 -- versions are below it
local connections, addresses
-- Requests that wait, of all connections, in arrays of numbers: correlation id, kind (API key * KINDS + version), frame,
-- the place among its frame's messages, and which comes next, also of the places that are free.
local wait_corr, wait_kind, wait_frame, wait_place, wait_next, wait_free, wait_used
-- By frame, in arrays of numbers that the collector has nothing to follow in: direction (true: to the broker) and, of
-- the frame's first message, correlation id, kind, the other message's frame and when the request began. Others are in
-- `more`. forwards: API key and version inside an Envelope request; hidden_in: whether the frame has a bare SASL token;
-- begins: where its first message begins, if not at 0.
local to_broker, corr_of, kind_of, peer_of, began_of, more, forwards, hidden_in, begins
local function forget()
  addresses, wait_free, wait_used = {}, nil, 0
  wait_corr, wait_kind, wait_frame, wait_place, wait_next = {}, {}, {}, {}, {}
  connections, to_broker, corr_of, kind_of, peer_of, began_of = {}, {}, {}, {}, {}, {}
  more, forwards, hidden_in, begins = {}, {}, {}, {}
end
kafka.init = forget
forget()

-- Most objects live as long as one packet, and Lua spends half of the time on collecting them at its own pace. All at once
-- whenever MOST_GARBAGE (kilobytes) has gathered is cheaper. Lua begins by itself a little later than that, for scripts
-- beside this one have no other collector.
local MOST_GARBAGE, OFTEN = 307200, 1000
local MOST_PAUSE = _VERSION == "Lua 5.2" and 1000000 or 1000 -- percent; Lua 5.4 has a byte for it
local messages_seen, kept = 0, 0
local function collect()
  kept = collectgarbage("count")
  local pause = floor(100 + 125 * MOST_GARBAGE / kept)
  collectgarbage("setpause", pause < MOST_PAUSE and pause or MOST_PAUSE)
  collectgarbage("collect")
  kept = collectgarbage("count")
end
collect()
local function tidy()
  messages_seen = messages_seen + 1
  if messages_seen % OFTEN == 0 and collectgarbage("count") > kept + MOST_GARBAGE then collect() end
end

local function shared(address)
  local text = tostring(address)
  local known = addresses[text]
  if not known then
    known = address
    addresses[text] = known
  end
  return known
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
  local made = {a = shared(source), b = shared(pinfo.dst), ap = source_port, first = false, last = false, waiting = 0}
  list[#list + 1] = made
  return made, true
end

-- Requests from the first that waits to this one wait no longer; without one, none does.
local function drop_until(st, last)
  local place = st.first
  while place do
    local behind = wait_next[place]
    wait_next[place], wait_free = wait_free or false, place
    st.waiting = st.waiting - 1
    if place == last then
      st.first = behind
      if not behind then st.last = false end
      return
    end
    place = behind
  end
  st.first, st.last = false, false
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
  local last = st.last
  if last and (key == 18 or key == 17) and corr <= wait_corr[last] then drop_until(st) end
  if st.waiting >= MOST_WAITING then drop_until(st, st.first) end
  local place = wait_free
  if place then wait_free = wait_next[place]
  else
    place = wait_used + 1
    wait_used = place
  end
  wait_corr[place], wait_kind[place], wait_frame[place], wait_next[place] = corr, kind, frame, false
  wait_place[place] = remember(frame, corr, kind, false, began)
  last = st.last
  if last then wait_next[last] = place else st.first = place end
  st.last, st.waiting = place, st.waiting + 1
end

-- The first request of this correlation id that waits; else false.
local function waits(st, corr)
  local place = st.first
  while place and wait_corr[place] ~= corr do place = wait_next[place] end
  return place
end

-- A response takes its request out of the queue, with all that waited before it: brokers answer in order. Its kind and
-- the request's frame; nil where no request waits for it.
local function answer(st, frame, corr)
  local place = waits(st, corr)
  if not place then return nil end
  local kind, peer, which = wait_kind[place], wait_frame[place], wait_place[place]
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

