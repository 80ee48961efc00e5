-- Methods of Wireshark's classes as plain functions: looking one up on an object takes a fifth of adding an item.
local add, set_len, set_generated = TreeItem.add, TreeItem.set_len, TreeItem.set_generated
local add_packet_field, UTF8 = TreeItem.add_packet_field, ENC_UTF_8

-- Reading numbers out of a string. Arithmetic alone: Lua 5.2 to 5.4 have no bit operations in common, and 64-bit
-- values never become Lua numbers (Wireshark reads them from the packet itself).
local byte, find, floor, sub = string.byte, string.find, math.floor, string.sub

-- An unsigned varint of at most five bytes (KIP-482) at p, and where it ends; nil where it does not.
local function varint(s, p, n)
  local value, scale = 0, 1
  for _ = 1, 5 do
    if p >= n then return nil, p end
    local b = byte(s, p + 1)
    p = p + 1
    if b < 128 then return value + b * scale, p end
    value = value + (b - 128) * scale
    scale = scale * 128
  end
  return nil, p
end

local function int32(s, p)
  local a, b, c, d = byte(s, p + 1, p + 4)
  local value = ((a * 256 + b) * 256 + c) * 256 + d
  if a > 127 then value = value - 4294967296 end
  return value
end

local function int16(s, p)
  local a, b = byte(s, p + 1, p + 2)
  local value = a * 256 + b
  if a > 127 then value = value - 65536 end
  return value
end

local function int8(s, p)
  local value = byte(s, p + 1)
  if value > 127 then value = value - 256 end
  return value
end

local MINUS_ONE = string.rep("\255", 8)
-- Of an int64 only whether it is -1, which is all that schemas give a meaning to.
local function int64(s, p) return sub(s, p + 1, p + 8) == MINUS_ONE and -1 or nil end

-- A UUID in Kafka's own form: base64url, 22 characters, as its logs print it.
local DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
local MOST_UUIDS = 1000 -- that are remembered; topics' come again and again
local uuids, uuids_known = {}, 0
local function uuid(s, p)
  local bytes = sub(s, p + 1, p + 16)
  local known = uuids[bytes]
  if known then return known end
  local out = {}
  for i = p, p + 15, 3 do
    local last = i + 3 > p + 16
    local a, b, c = byte(s, i + 1, i + 3)
    if last then b, c = 0, 0 end
    local value = a * 65536 + b * 256 + c
    for j = 1, last and 2 or 4 do
      local digit = floor(value / 64 ^ (4 - j)) % 64
      out[#out + 1] = sub(DIGITS, digit + 1, digit + 1)
    end
  end
  if uuids_known == MOST_UUIDS then uuids, uuids_known = {}, 0 end
  known = table.concat(out)
  uuids[bytes], uuids_known = known, uuids_known + 1
  return known
end

-- Which configurations' values are shown: those that Kafka defines (OPEN; without a listener's name in front, KIP-103),
-- unless these words are in the name. Kafka takes one that no definition knows as sensitive (KIP-226).
local SECRET = {
  "password", "passphrase", "passwd", "secret", "jaas", "credential", "private[._]?key", "api[._]?key",
  "keystore%.key$", "certificate%.chain$", "truststore%.certificates$", "master%.key$",
}
local HARMLESS = {
  "password%.encoder%.cipher", "password%.encoder%.iterations", "password%.encoder%.key", "%.type$", "%.location$",
  "%.algorithm$", "%.provider$",
}
local function is_hidden(name)
  if not name or not OPEN[name:gsub("listener%.name%.[^.]+%.", "", 1)] then return true end
  local low, hit = name:lower(), false
  for _, word in ipairs(SECRET) do if low:find(word) then hit = true break end end
  if not hit then return false end
  for _, word in ipairs(HARMLESS) do if name:find(word) then return false end end
  return true
end
