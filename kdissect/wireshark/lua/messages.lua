-- One message: header, pairing, body.
local MOST_BYTES = 104857600 + 1048576 -- socket.request.max.bytes of a broker, and some
local API_VERSIONS, CONTROLLED_SHUTDOWN, SASL_HANDSHAKE, ENVELOPE = 18, 7, 17, 58
local UNSUPPORTED_VERSION = 35
local MOST_KEYS = 1000 -- API keys that are taken for such without a layout; Kafka has about a hundred

-- Key and version where a request's header may stand at p (behind the length), else nil. `known`: on a connection that
-- is known to be Kafka's, where APIs and versions without a layout come too, and client ids that are no text.
local function plausible(s, p, n, known)
  if n - p < 8 then return nil end
  local key, version = int16(s, p), int16(s, p + 2)
  local api = APIS[key]
  if not api or version < api.a or version > api.b then
    local absurd = key == API_VERSIONS and version >= 0
    if not absurd and not (known and key >= 0 and key < MOST_KEYS and version >= 0 and version < KINDS) then
      return nil
    end
  end
  if not (key == CONTROLLED_SHUTDOWN and version == 0) then
    if n - p < 10 then return nil end
    local l = int16(s, p + 8)
    if l < -1 or not known and l > 4096 then return nil end
    if not known then
      local stop = p + 10 + l
      for i = p + 11, stop < n and stop or n do if byte(s, i) < 32 then return nil end end
    end
  end
  return key, version
end

-- Whether a request with a client id may begin here: enough to wait for the rest of a connection's first.
local function named_client(s, len)
  return len >= 18 and plausible(s, 4, len) and int16(s, 12) > 0
end

local function header_version(side, version, request)
  if side.h and version >= side.h.a and version <= side.h.b then return side.h.v end
  return (version >= side.x and 1 or 0) + (request and 1 or 0)
end

-- Where a header's tagged fields end; nil where they do not fit.
local function skip_tags(s, p, n)
  local count
  count, p = varint(s, p, n)
  if not count or count * 2 > n - p then return nil end
  for _ = 1, count do
    local tag, size
    tag, p = varint(s, p, n)
    if not tag then return nil end
    size, p = varint(s, p, n)
    if not size or p + size > n then return nil end
    p = p + size
  end
  return p
end

-- Where a request's body begins, whose length prefix is at o; nil where its header does not fit.
local function request_body(s, o, n, key, version)
  local p = o + 12
  if key ~= CONTROLLED_SHUTDOWN or version ~= 0 then
    local l = int16(s, p)
    p = p + 2
    if l > 0 then p = p + l end
    if p > n then return nil end
  end
  local api = APIS[key]
  if api and header_version(api.q, version, true) == 2 then return skip_tags(s, p, n) end
  return p
end

function body_of(which, s, p, n, key, version) -- of a message without its length, as an Envelope has it
  if which == "request" then
    if n - p < 10 and not (key == CONTROLLED_SHUTDOWN and version == 0) then return nil end
    return request_body(s, p - 4, n, key, version)
  end
  if n - p < 4 then return nil end
  return header_version(APIS[key].r, version, false) == 1 and skip_tags(s, p + 4, n) or p + 4
end

-- Whether a request says who sends it: a client id, none (-1 is rare elsewhere), or an empty one with some word behind it.
-- Other protocols' zeros and small numbers fit layouts too.
local function named(s, o, n, key, version)
  if key == CONTROLLED_SHUTDOWN and version == 0 then return true end
  if int16(s, o + 12) ~= 0 then return true end
  local word = s:find("%w%w%w", o + 15)
  return word ~= nil and word + 2 <= n
end

-- Whether a whole request begins at o: a plausible header alone would do for zeros in the middle of a response. Behind
-- it, where that is not so, whether one that does not say who sends it fills the segment.
local function whole_request(s, o, len)
  if len - o < 12 then return false end
  local size = int32(s, o)
  if size < 8 or size > MOST_BYTES then return false end
  local n = o + 4 + size
  if n > len then return false end
  local key, version = plausible(s, o + 4, n, true)
  local l = key and layout(key, "q", version)
  if not l then return key == API_VERSIONS and plausible(s, o + 4, n) ~= nil end -- a version that is still to come
  local p = request_body(s, o, n, key, version)
  if p == nil or fitting(l, s, p, n) == nil then return false end
  if named(s, o, n, key, version) then return true end
  return false, n == len
end

-- acks of a Produce request: with 0 nobody answers.
local function unanswered(s, o, n, version)
  local p = request_body(s, o, n, 0, version)
  if not p then return false end
  if version >= 9 then
    local l
    l, p = varint(s, p, n)
    if l and l > 1 then p = p + l - 1 end
  elseif version >= 3 and p + 2 <= n then
    local l = int16(s, p)
    p = p + 2
    if l > 0 then p = p + l end
  end
  return p + 2 <= n and int16(s, p) == 0
end

local function walker(l, which, t, visible)
  if visible then
    local walk = l.show[which]
    if not walk then
      walk = compile(l.side, l.fields[which], l.version, nil)
      l.show[which] = walk
    end
    return walk
  end
  local asked, any = {which}, false
  for _, i in ipairs(l.leaves) do
    if t:referenced(F[i]) then
      asked[#asked + 1] = i
      any = true
    end
  end
  if not any then return nil end
  local name = table.concat(asked, ",")
  local walk = l.pick[name]
  if not walk then
    local want = {}
    for place = 2, #asked do want[asked[place]] = true end
    walk = compile(l.side, l.fields[which], l.version, want)
    l.pick[name] = walk
  end
  return walk
end

local function add_body(l, s, p, n, tvb, t, cut, visible)
  local which = 1
  if #l.fields > 1 and not cut then which = fitting(l, s, p, n) or 1 end
  local walk = walker(l, which, t, visible)
  if not walk then return end
  local stop, at, name, many = walk(s, p, n, tvb, 0, t)
  if stop == n and not cut then return end
  if many then t:add_proto_expert_info(TOO_MANY)
  elseif cut then t:add_proto_expert_info(CUT)
  elseif stop then t:add_tvb_expert_info(MALFORMED, tvb(stop, n - stop), (n - stop) .. " bytes left over")
  else t:add_tvb_expert_info(MALFORMED, tvb(at, n - at), "Does not fit its layout at " .. name) end
end

local function add_hidden(tree, tvb, o, n)
  local t = add(tree, kafka, tvb(o, n - o))
  t:append_text(", SASL token")
  add(t, H.length, tvb(o, 4))
  add(t, H.hidden, tvb(o, 4), n - o - 4)
  return "SASL token"
end

local names = {} -- of kinds, for the Info column
local function name_of(kind, response)
  local id = kind * 2 + (response and 1 or 0)
  local name = names[id]
  if not name then
    local key = floor(kind / KINDS)
    name = (APIS[key] and APIS[key].n or "API " .. key) .. " v" .. kind % KINDS .. (response and " response" or " request")
    names[id] = name
  end
  return name
end

-- The pairing of one message, in the first pass. Kind, the other message's frame and when the request began; nil where
-- this is no message of Kafka; "token" for a bare SASL token.
local function pair(st, frame, s, o, n, request, began)
  local corr = int32(s, o + (request and 8 or 4))
  if not request then
    local kind, peer, request_began = answer(st, frame, corr)
    if kind then
      if st.tokens == "asked" and floor(kind / KINDS) == SASL_HANDSHAKE then st.tokens = "open" end
      return kind, peer, request_began
    end
    return st.tokens and "token" or nil
  end
  local key, version = plausible(s, o + 4, n, true)
  if st.tokens then
    if not key or not whole_request(s, o, n) then return "token" end
    st.tokens = nil
  end
  if not key then return nil end
  local kind = key * KINDS + version
  if key == 0 and unanswered(s, o, n, version) then remember(frame, corr, kind, false, began)
  else ask(st, frame, corr, kind, key, began) end
  if key == SASL_HANDSHAKE and version == 0 then st.tokens = "asked" end
  if key == ENVELOPE then
    local p = request_body(s, o, n, key, version)
    local size
    if p then size, p = varint(s, p, n) end
    if size and p + 4 <= n then forwards[frame] = {int16(s, p), int16(s, p + 2)} end
  end
  return kind, false, began
end

-- A first request that fits and does not say who sends it may be any protocol's small numbers: it waits in the queue until
-- an answer to it fits too.
local function suppose(st, frame, s, len, from_a, began)
  if st.asker_is_a ~= from_a then drop_until(st) end
  st.asker_is_a, st.tokens, st.since = from_a, nil, nil
  pair(st, frame, s, 0, len, true, began)
end

-- Whether a segment of the other side begins with an answer to such a request.
local function seconded(st, s, len)
  if len < 12 then return false end
  local n, corr = int32(s, 0) + 4, int32(s, 4)
  if n < 12 or n > len then return false end
  local place = waits(st, corr)
  if not place then return false end
  local key, version = floor(wait_kind[place] / KINDS), wait_kind[place] % KINDS
  local l = layout(key, "r", version)
  local p = l and body_of("response", s, 4, n, key, version)
  return p and fitting(l, s, p, n) ~= nil
end

-- The message at o, `total` bytes as it announces, there up to n. Its name; nil where this is none.
local function add_message(tvb, pinfo, tree, o, s, total, n, st, request, visible, asked)
  local cut = o + total > n
  if not cut then n = o + total end
  if n - o < 8 or request and n - o < 12 then return nil end
  local frame = pinfo.number
  local kind, peer, began
  if pinfo.visited then
    local corr = int32(s, o + (request and 8 or 4))
    kind, peer, began = recall(frame, corr)
    if not kind then
      local token = hidden_in[frame]
      return token and asked and add_hidden(tree, tvb, o, n) or token and "SASL token" or nil
    end
  else
    kind, peer, began = pair(st, frame, s, o, n, request, request and st.since or pinfo.rel_ts)
    if request then st.since = nil end
    if not kind then return nil end
    if kind == "token" then
      hidden_in[frame] = true
      return asked and add_hidden(tree, tvb, o, n) or "SASL token"
    end
  end
  local name = name_of(kind, not request)
  if not asked then return name end
  tidy()
  local key, version = floor(kind / KINDS), kind % KINDS
  local t = add(tree, kafka, tvb(o, n - o))
  if visible then t:append_text(", " .. name) end
  if visible or t:referenced(H.length) then add(t, H.length, tvb(o, 4)) end
  if visible or t:referenced(H.response) then set_generated(add(t, H.response, not request)) end
  local p
  if request then
    if visible or t:referenced(H.api) then add(t, H.api, tvb(o + 4, 2)) end
    if visible or t:referenced(H.version) then add(t, H.version, tvb(o + 6, 2)) end
    if visible or t:referenced(H.correlation_id) then add(t, H.correlation_id, tvb(o + 8, 4)) end
    if peer and (visible or t:referenced(H.response_in)) then set_generated(add(t, H.response_in, peer)) end
    if not (key == CONTROLLED_SHUTDOWN and version == 0) and n >= o + 14 then
      local l = int16(s, o + 12)
      if l >= 0 and o + 14 + l <= n and (visible or t:referenced(H.client_id)) then
        add_text(t, H.client_id, tvb, 0, s, o + 14, l)
      end
      p = request_body(s, o, n, key, version)
    else
      p = o + 12
    end
  else
    if visible or t:referenced(H.api) then set_generated(add(t, H.api, key)) end
    if visible or t:referenced(H.version) then set_generated(add(t, H.version, version)) end
    if visible or t:referenced(H.correlation_id) then add(t, H.correlation_id, tvb(o + 4, 4)) end
    if visible or t:referenced(H.request_in) then set_generated(add(t, H.request_in, peer)) end
    if visible or t:referenced(H.latency) then
      local took = pinfo.rel_ts - began
      local whole = floor(took)
      set_generated(add(t, H.latency, NSTime.new(whole, floor((took - whole) * 1e9 + 0.5))))
    end
    forwarded = key == ENVELOPE and forwards[peer] or nil
    if key == API_VERSIONS and version > 0 and n - o >= 10 and int16(s, o + 8) == UNSUPPORTED_VERSION then version = 0 end
    p = o + 8
    local api = APIS[key]
    if api and header_version(api.r, version, false) == 1 then p = skip_tags(s, p, n) end
  end
  local l = layout(key, request and "q" or "r", version)
  if not l then t:add_proto_expert_info(UNKNOWN)
  elseif not p then t:add_proto_expert_info(cut and CUT or MALFORMED)
  else add_body(l, s, p, n, tvb, t, cut, visible) end
  return name
end
