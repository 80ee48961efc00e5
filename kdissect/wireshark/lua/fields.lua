-- The protocol, its preferences and its fields: what a display filter and -e can name.
local kafka = Proto("kdissect", "Kafka (kdissect)")
kafka.prefs.ports = Pref.range("TCP ports", "9092",
  "Ports taken over from Wireshark's own Kafka dissector; empty gives them back. Other ports are found by content", 65535)
kafka.prefs.content = Pref.bool("Find Kafka by content", true,
  "On any port, where the first request of a connection fits its layout to the last byte")

local KINDS = {
  bool = "bool", int8 = "int8", int16 = "int16", int32 = "int32", int64 = "int64", uint16 = "uint16", uint32 = "uint32",
  float64 = "double", uuid = "string", string = "string", bytes = "bytes", count = "uint32", group = "none",
}
local all_fields = {}
local function field(kind, ...)
  local made = ProtoField[kind](...)
  all_fields[#all_fields + 1] = made
  return made
end

-- FIELDS[i] = {name, display name, type, what special values mean, doc}; F[i] is its ProtoField. Where some values mean
-- something, MEANT[i] has for each of them a field of the same name that says so: with one field for all, Wireshark calls
-- every other value unknown.
local F, MEANT = {}, {}
for i, x in ipairs(FIELDS) do
  local kind, doc = KINDS[x[3]], x[5] ~= "" and x[5] or nil
  if kind == "none" then F[i] = field(kind, x[1], x[2], doc)
  elseif kind == "bytes" then F[i] = field(kind, x[1], x[2], base.NONE, doc)
  elseif kind == "string" then F[i] = field(kind, x[1], x[2], base.UNICODE or base.ASCII, doc)
  elseif kind == "bool" or kind == "double" then F[i] = field(kind, x[1], x[2], base.NONE, nil, nil, doc)
  else F[i] = field(kind, x[1], x[2], base.DEC, x[4] == ERRORS and ERRORS or nil, nil, doc) end
  if x[4] and x[4] ~= ERRORS then
    local said = field(kind, x[1], x[2], base.DEC, x[4], nil, doc)
    MEANT[i] = {}
    for value in pairs(x[4]) do MEANT[i][value] = said end
  end
end

local API_NAMES = {}
for key, api in pairs(APIS) do API_NAMES[key] = api.n end
local H = {
  length = field("uint32", "kdissect.length", "Length", base.DEC),
  api = field("int16", "kdissect.api", "API", base.DEC, API_NAMES),
  version = field("int16", "kdissect.version", "Version", base.DEC),
  correlation_id = field("int32", "kdissect.correlation_id", "Correlation id", base.DEC),
  client_id = field("string", "kdissect.client_id", "Client id", base.UNICODE or base.ASCII),
  response = field("bool", "kdissect.response", "Response", base.NONE, nil, nil, "A response, not a request"),
  request_in = field("framenum", "kdissect.request_in", "Request in", base.NONE, frametype and frametype.REQUEST),
  response_in = field("framenum", "kdissect.response_in", "Response in", base.NONE, frametype and frametype.RESPONSE),
  latency = field("relative_time", "kdissect.latency", "Latency", nil,
    "From the request's first byte to the response's last"),
  unknown_tag = field("uint32", "kdissect.unknown_tag", "Unknown tagged field", base.DEC),
  unknown_tag_bytes = field("bytes", "kdissect.unknown_tag.bytes", "Bytes", base.NONE),
  hidden = field("uint32", "kdissect.hidden", "Credential, hidden: bytes", base.DEC),
  batch = field("none", "kdissect.batch", "Batch"),
  base_offset = field("int64", "kdissect.batch.base_offset", "Base offset", base.DEC),
  batch_length = field("int32", "kdissect.batch.length", "Batch length", base.DEC),
  leader_epoch = field("int32", "kdissect.batch.partition_leader_epoch", "Partition leader epoch", base.DEC),
  magic = field("int8", "kdissect.batch.magic", "Magic", base.DEC),
  crc = field("uint32", "kdissect.batch.crc", "CRC", base.HEX),
  attributes = field("uint16", "kdissect.batch.attributes", "Attributes", base.HEX),
  codec = field("uint16", "kdissect.batch.codec", "Codec", base.DEC,
    {[0] = "none", "gzip", "snappy", "lz4", "zstd"}, 7),
  transactional = field("bool", "kdissect.batch.transactional", "Transactional", 16, nil, 16),
  control = field("bool", "kdissect.batch.control", "Control", 16, nil, 32),
  last_offset_delta = field("int32", "kdissect.batch.last_offset_delta", "Last offset delta", base.DEC),
  base_timestamp = field("int64", "kdissect.batch.base_timestamp", "Base timestamp", base.DEC),
  max_timestamp = field("int64", "kdissect.batch.max_timestamp", "Max timestamp", base.DEC),
  producer_id = field("int64", "kdissect.batch.producer_id", "Producer id", base.DEC),
  producer_epoch = field("int16", "kdissect.batch.producer_epoch", "Producer epoch", base.DEC),
  base_sequence = field("int32", "kdissect.batch.base_sequence", "Base sequence", base.DEC),
  records = field("int32", "kdissect.batch.records", "Records", base.DEC),
}
kafka.fields = all_fields

local MALFORMED = ProtoExpert.new("kdissect.malformed", "Does not fit its layout", expert.group.MALFORMED,
  expert.severity.WARN)
local CUT = ProtoExpert.new("kdissect.cut", "Bytes are missing from the capture", expert.group.UNDECODED,
  expert.severity.NOTE)
local UNKNOWN = ProtoExpert.new("kdissect.unknown", "No layout is known for this API or version",
  expert.group.UNDECODED, expert.severity.NOTE)
local TOO_MANY = ProtoExpert.new("kdissect.too_many", "Too many elements to show", expert.group.UNDECODED,
  expert.severity.NOTE)
kafka.experts = {MALFORMED, CUT, UNKNOWN, TOO_MANY}
