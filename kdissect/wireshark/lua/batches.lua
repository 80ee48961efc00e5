-- Headers of record batches of format 2 (KIP-98). Records, their keys and values are not shown.
local MOST_BATCHES = 10000 -- per message: Wireshark gives up on a packet of a million items
local function add_batches(tree, tvb, o, length, s, p)
  local stop, count = p + length, 0
  while stop - p >= 17 and count < MOST_BATCHES do
    local size, magic = int32(s, p + 8), byte(s, p + 17)
    if size < 9 then return end
    local take = size + 12
    if take > stop - p then take = stop - p end -- a fetch may end inside a batch
    count = count + 1
    local at = o + p
    local t = tree:add(tvb(at, take), "Batch")
    t:add(H.base_offset, tvb(at, 8))
    t:add(H.batch_length, tvb(at + 8, 4))
    if magic == 2 and take >= 61 then
      t:add(H.leader_epoch, tvb(at + 12, 4))
      t:add(H.magic, tvb(at + 16, 1))
      t:add(H.crc, tvb(at + 17, 4))
      local a = t:add(H.attributes, tvb(at + 21, 2))
      a:add(H.codec, tvb(at + 21, 2))
      a:add(H.transactional, tvb(at + 21, 2))
      a:add(H.control, tvb(at + 21, 2))
      t:add(H.last_offset_delta, tvb(at + 23, 4))
      t:add(H.base_timestamp, tvb(at + 27, 8))
      t:add(H.max_timestamp, tvb(at + 35, 8))
      t:add(H.producer_id, tvb(at + 43, 8))
      t:add(H.producer_epoch, tvb(at + 51, 2))
      t:add(H.base_sequence, tvb(at + 53, 4))
      t:add(H.records, tvb(at + 57, 4))
    else
      t:add(H.magic, tvb(at + 16, 1))
    end
    p = p + size + 12
  end
end
