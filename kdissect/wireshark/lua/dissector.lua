-- Where Wireshark calls: segments of a TCP connection, or what TLS hides.
-- Another protocol's dissector may have taken the beginning of a connection that was met in its middle, and left a few
-- bytes of it in front of an answer. Where a response that somebody waits for ends with the segment, it begins there.
local MOST_LEFT = 64
local function realigned(st, s, len)
  if len < 8 or waits(st, int32(s, 4)) then return 0 end
  for off = 1, len - 8 < MOST_LEFT and len - 8 or MOST_LEFT do
    if int32(s, off) + 4 == len - off and waits(st, int32(s, off + 4)) then return off end
  end
  return 0
end

local function plausible_size(s)
  local size = int32(s, 0)
  return size >= 8 and size <= MOST_BYTES
end

local SELF
local function dissect(tvb, pinfo, tree, by_content)
  local len = tvb:len()
  local visited, frame = pinfo.visited, pinfo.number
  local s = tvb:raw(0, len)
  local st, request
  if visited then
    request = to_broker[frame]
    if request == nil then return 0 end
  else
    local from_a
    st, from_a = connection(pinfo, false)
    if st and st.client_is_a == nil and st.asker_is_a == not from_a and seconded(st, s, len) then
      st.client_is_a = st.asker_is_a
      local place = st.first
      while place do
        to_broker[wait_frame[place]] = true
        place = wait_next[place]
      end
    elseif not st or st.client_is_a == nil then
      local fits, nameless = whole_request(s, 0, len)
      if nameless then
        if not st then st, from_a = connection(pinfo, true) end
        suppose(st, frame, s, len, from_a, st.since or pinfo.rel_ts)
        return 0
      end
      if not fits then
        -- A message may take several segments: its beginning tells whether to wait for the rest. Some clients send the
        -- length by itself, which tells enough on a port that is Kafka's.
        local missing
        if len < 18 then
          missing = not by_content and (len < 4 or plausible_size(s)) and DESEGMENT_ONE_MORE_SEGMENT
        elseif named_client(s, len) then
          missing = 4 + int32(s, 0) - len
        end
        if not missing or missing <= 0 or missing > MOST_BYTES and len >= 18 then return 0 end
        if tvb:reported_len() == len and pinfo.can_desegment > 0 then
          st = st or connection(pinfo, true)
          st.since = st.since or pinfo.rel_ts
          pinfo.desegment_offset, pinfo.desegment_len = 0, missing
          return len
        end
        if by_content or len < 18 then return 0 end
      end
      if not st then st, from_a = connection(pinfo, true) end
      if st.asker_is_a ~= nil then drop_until(st) end -- what was supposed was no Kafka
      st.client_is_a = from_a
    end
    request = from_a == st.client_is_a
    to_broker[frame] = request
  end
  SELF = SELF or Dissector.get("kdissect")
  local visible = tree.visible
  local asked = visible or tree:referenced(SELF)
  local whole = tvb:reported_len() == len and pinfo.can_desegment > 0
  local off, info = visited and begins[frame] or 0, nil
  if not visited and not request then
    off = realigned(st, s, len)
    if off > 0 then begins[frame] = off end
  end
  while off < len do
    local left = len - off
    local total
    if left >= 4 then
      local size = int32(s, off)
      if size < 4 or size > MOST_BYTES then break end
      total = size + 4
    end
    if not total or left < total then
      -- The rest is waited for only behind what looks like a message: garbage and cut packets would swallow the stream.
      if left >= 12 and not visited then
        local known
        if request then known = st.tokens or plausible(s, off + 4, len, true)
        else known = st.tokens or waits(st, int32(s, off + 4)) end
        if not known then break end
      end
      if whole then
        if not visited and request then st.since = st.since or pinfo.rel_ts end
        pinfo.desegment_offset = off
        pinfo.desegment_len = total and total - left or DESEGMENT_ONE_MORE_SEGMENT
        off = len
        break
      end
      if not total then break end
    end
    local name = add_message(tvb, pinfo, tree, off, s, total, len, st, request, visible, asked)
    if not name then break end
    info = info and info .. ", " .. name or name
    off = off + total
  end
  if info then
    local columns = pinfo.cols
    columns.protocol, columns.info = "Kafka", info
  end
  return off < len and off or len
end

function kafka.dissector(tvb, pinfo, tree) return dissect(tvb, pinfo, tree, false) end

local function in_tls(tvb, pinfo, tree)
  return kafka.prefs.content and dissect(tvb, pinfo, tree, true) > 0
end
local function in_tcp(tvb, pinfo, tree)
  if not in_tls(tvb, pinfo, tree) then return false end
  if to_broker[pinfo.number] ~= nil then pinfo.conversation = kafka end
  return true
end
kafka:register_heuristic("tcp", in_tcp)
kafka:register_heuristic("tls", in_tls)

-- Ports: each is given back to whoever had it before.
local taken = {}
local function take_ports()
  local tcp = DissectorTable.get("tcp.port")
  for port, before in pairs(taken) do
    tcp:remove(port, kafka)
    if before then tcp:add(port, before) end
  end
  taken = {}
  for first, last in tostring(kafka.prefs.ports or ""):gmatch("(%d+)%-?(%d*)") do
    for port = tonumber(first), tonumber(last ~= "" and last or first) do
      taken[port] = tcp:get_dissector(port) or false
      tcp:add(port, kafka)
    end
  end
end
function kafka.prefs_changed() take_ports() end
take_ports()
