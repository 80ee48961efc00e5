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
    local t = add(tree, H.batch, tvb(at, take))
    add(t, H.base_offset, tvb(at, 8))
    add(t, H.batch_length, tvb(at + 8, 4))
    if magic == 2 and take >= 61 then
      add(t, H.leader_epoch, tvb(at + 12, 4))
      add(t, H.magic, tvb(at + 16, 1))
      add(t, H.crc, tvb(at + 17, 4))
      local bits = tvb(at + 21, 2)
      local a = add(t, H.attributes, bits)
      add(a, H.codec, bits)
      add(a, H.transactional, bits)
      add(a, H.control, bits)
      add(t, H.last_offset_delta, tvb(at + 23, 4))
      add(t, H.base_timestamp, tvb(at + 27, 8))
      add(t, H.max_timestamp, tvb(at + 35, 8))
      add(t, H.producer_id, tvb(at + 43, 8))
      add(t, H.producer_epoch, tvb(at + 51, 2))
      add(t, H.base_sequence, tvb(at + 53, 4))
      add(t, H.records, tvb(at + 57, 4))
    else
      add(t, H.magic, tvb(at + 16, 1))
    end
    p = p + size + 12
  end
end
