-- A layout becomes a Lua function. compile() writes Lua source for one version of one side of an API, with items for
-- what is wanted (nil: everything; an empty table: nothing, a dry walk), and loads it: no table of fields is looked at
-- per message.
--
-- The function walks string s from p to n (s[p + 1] is the first byte) and adds items to tree t, for bytes that lie at
-- o + p in tvb. It returns where it ended; or nil, where it stopped and the field that does not fit there, and whether
-- the message merely has too many elements.
--
-- A field: n name, d Kafka's name, i its ProtoField, t type, e element type, a-b versions, na-nb versions in which it
-- may be null, g tag, x lengths are never compact, s a credential, by the sibling that names the configuration,
-- h the message in these bytes, f fields of a struct, nul what null means.
local WIDTH = {bool = 1, int8 = 1, int16 = 2, uint16 = 2, int32 = 4, uint32 = 4, int64 = 8, float64 = 8, uuid = 16}
local READER = {int8 = "int8", int16 = "int16", int32 = "int32", int64 = "int64"}
local NEWEST = 32767
local MOST_ELEMENTS = 60000 -- of arrays in one message: Wireshark gives up on a packet of a million items

local function present(f, version) return version >= (f.a or 0) and version <= (f.b or NEWEST) end

-- Every ProtoField below these fields, payloads included.
local function leaves(fields, version, into)
  for _, f in ipairs(fields) do
    if present(f, version) then
      into[#into + 1] = f.i
      if f.f then leaves(f.f, version, into) end
      if f.h and PAYLOADS[f.h] then leaves(PAYLOADS[f.h].f, PAYLOADS[f.h].b, into) end
    end
  end
  return into
end

-- A text of l bytes at p. Wireshark takes one that it is given four times as fast as it reads one; what is not plain it
-- shall judge itself.
local function add_text(t, field, tvb, o, s, p, l)
  local text = sub(s, p + 1, p + l)
  if find(text, "[^\1-\127]") then add_packet_field(t, field, tvb(o + p, l), UTF8)
  else add(t, field, tvb(o + p, l), text) end
end

local compile, layout

-- What a field's bytes hold, where that fits exactly: an int16 with its version, then a payload.
local payload_walkers = {}
local function add_payload(name, want, tree, tvb, o, s, p, n)
  local message = PAYLOADS[name]
  if n - p < 2 then return end
  local version = int16(s, p)
  if version < message.a then return end
  if version > message.b then version = message.b end
  local id = name .. version
  local dry = payload_walkers[id]
  if not dry then
    dry = compile(message, message.f, version, {})
    payload_walkers[id] = dry
  end
  if dry(s, p + 2, n, nil, 0, nil) ~= n then return end
  local show = want and (want[id] or compile(message, message.f, version, want)) or payload_walkers[id .. "+"]
  if want then want[id] = show
  elseif not show then
    show = compile(message, message.f, version, nil)
    payload_walkers[id .. "+"] = show
  end
  show(s, p + 2, n, tvb, o, want and tree or add(tree, tvb(o + p, n - p), name .. " v" .. version))
end

-- A request or response that a broker forwards (KIP-590): its bytes with zeros for credentials, all of its body where
-- it does not fit. `forwarded` is the API key and version of the request that a response answers.
local forwarded, body_of
local hidden = {}
local function hide(p, l) hidden[#hidden + 1] = {p, l} end
local HIDE = {} -- what compile() wants of a walker that only calls hide()
local function masked(which, s, p, n)
  local key, version
  if which == "request" then
    if n - p < 8 then return nil end
    key, version = int16(s, p), int16(s, p + 2)
  elseif forwarded then key, version = forwarded[1], forwarded[2] end
  local api = key and APIS[key]
  local side = api and api[which == "request" and "q" or "r"]
  if not side then return nil end
  if not side.z then return sub(s, p + 1, n) end
  local start = body_of(which, s, p, n, key, version)
  if not start or side.e then return nil end
  local l = layout(key, which == "request" and "q" or "r", version)
  if not l then return nil end
  for i = 1, #l.fields do
    local walk = l.hide[i] or compile(l.side, l.fields[i], l.version, HIDE)
    l.hide[i], hidden = walk, {}
    if walk(s, start, n) == n then
      local parts, at = {}, p
      for _, x in ipairs(hidden) do
        parts[#parts + 1] = sub(s, at + 1, x[1])
        parts[#parts + 1] = string.rep("\0", x[2])
        at = x[1] + x[2]
      end
      return table.concat(parts) .. sub(s, at + 1, n)
    end
  end
  return sub(s, p + 1, start) .. string.rep("\0", n - start)
end
local function add_forwarded(which, index, tree, tvb, o, at, s, p, n)
  local shown = masked(which, s, p, n)
  if shown then add(tree, F[index], tvb(o + p, n - p), shown)
  else add(tree, H.hidden, tvb(o + at, p - at), n - p) end
end

function compile(side, fields, version, want)
  local flexible = version >= side.x
  local out, ids = {}, 0
  local function w(...) out[#out + 1] = table.concat({...}) end
  local function new(letter) ids = ids + 1 return letter .. ids end
  local struct
  local function own(f) return not want or want[f.i] end
  local function wanted(f)
    if own(f) then return true end
    for _, list in ipairs({f.f or {}, f.h and PAYLOADS[f.h] and PAYLOADS[f.h].f or {}}) do
      for _, c in ipairs(list) do if wanted(c) then return true end end
    end
    return false
  end
  local function fixed(f) return not f.g and present(f, version) and WIDTH[f.t] or nil end
  local function fail(f, at) return "return nil," .. (at or "p") .. ",'" .. f.n .. "' " end
  -- An item for a value of fixed size whose bytes begin at the expression `at`.
  local function value(f, kind, t, at)
    local range = "tvb(o+" .. at .. "," .. WIDTH[kind] .. ")"
    if kind == "uuid" then w("add(", t, ",F[", f.i, "],", range, ",uuid(s,", at, "))")
    elseif not want and MEANT[f.i] and READER[kind] then
      w("add(", t, ",MEANT[", f.i, "][", READER[kind], "(s,", at, ")] or F[", f.i, "],", range, ")")
    else w("add(", t, ",F[", f.i, "],", range, ")") end
  end
  local function null(f, t, a)
    w("if ", "l~=-1 then ", fail(f, a), "end ")
    if not want then
      w("add(", t, ",tvb(o+", a, ",p-", a, "),", string.format("%q", f.d .. ": null" .. (f.nul or "")), ")")
    end
  end
  -- A length or count into the local l, whose bytes begin at a. Items of credentials cover these bytes alone.
  local function length(f, kind, a, nullable, t)
    w("local ", a, ",l=p")
    if flexible and not f.x then w("l,p=varint(s,p,n) if not l then ", fail(f, a), "end l=l-1")
    elseif kind == "string" then w("if p+2>n then ", fail(f), "end l=int16(s,p) p=p+2")
    else w("if p+4>n then ", fail(f), "end l=int32(s,p) p=p+4") end
    w("if l<0 then ")
    if nullable then null(f, t, a) else w(fail(f, a)) end
  end
  local function text(f, kind, t, nullable)
    local a = new"a"
    length(f, kind, a, nullable, t)
    w("else if p+l>n then ", fail(f, a), "end")
    if want == HIDE then
      if f.s then w("hide(p,l)") elseif f.by then w("if is_hidden(k_", f.by, ") then hide(p,l) end") end
    elseif f.h == "request" or f.h == "response" then
      if own(f) then w("add_forwarded('", f.h, "',", f.i, ",", t, ",tvb,o,", a, ",s,p,p+l)") end
    elseif own(f) then
      if f.s then w("add(", t, ",F[", f.i, "],tvb(o+", a, ",p-", a, "),l):append_text(' bytes, hidden')")
      elseif kind == "records" then
        local item = "add(" .. t .. ",F[" .. f.i .. "],tvb(o+" .. a .. ",p-" .. a .. "+l),l)"
        if want then w(item) else w("add_batches(", item, ",tvb,o,l,s,p)") end
      elseif f.by then
        w("if is_hidden(k_", f.by, ") then add(", t, ",H.hidden,tvb(o+", a, ",p-", a, "),l) else ")
        w("add_text(", t, ",F[", f.i, "],tvb,o,s,p,l) end")
      elseif kind == "string" then w("add_text(", t, ",F[", f.i, "],tvb,o,s,p,l)")
      else w("add(", t, ",F[", f.i, "],tvb(o+p,l))") end
    end
    if f.h and PAYLOADS[f.h] and wanted(f) then w("add_payload('", f.h, "',want,", t, ",tvb,o,s,p,p+l)") end
    if f.key then w("k_", f.n, "=sub(s,p+1,p+l)") end
    w("p=p+l end")
  end
  local function array(f, t, nullable)
    local a, c = new"a", new"c"
    length(f, "array", a, nullable, t)
    w("else local ", c, "=l if ", c, ">n-p then ", fail(f, a), "end")
    if WIDTH[f.e] and not wanted(f) then
      w("if p+", c, "*", WIDTH[f.e], ">n then ", fail(f), "end p=p+", c, "*", WIDTH[f.e])
    else
      w("items=items+", c, " if items>", MOST_ELEMENTS, " then return nil,", a, ",'", f.n, "',true end")
      local t2 = t
      if not want then
        t2 = new"t"
        if f.e == "struct" then w("local ", t2, "=add(", t, ",F[", f.i, "],tvb(o+", a, ",p-", a, "),", c, ")")
        else
          w("local ", t2, "=", c, "==1 and ", t, " or add(", t, ",tvb(o+", a, ",p-", a, "),'", f.d, ": '..", c, ")")
        end
      elseif f.e == "struct" and want[f.i] then w("add(", t, ",F[", f.i, "],tvb(o+", a, ",p-", a, "),", c, ")") end
      w("for i=0,", c, "-1 do")
      if f.e == "struct" then
        local t3 = t2
        if not want then -- an only element's fields stand below the array itself
          t3 = new"t"
          w("local ", t3, "q=p local ", t3, "=", c, "==1 and ", t2, " or add(", t2, ",tvb(o+p,0),'", f.d, "['..i..']')")
        end
        struct(f.f, t3)
        if not want then w("if ", c, "~=1 then set_len(", t3, ",p-", t3, "q) end") end
      elseif WIDTH[f.e] then
        w("if p+", WIDTH[f.e], ">n then ", fail(f), "end")
        value(f, f.e, t2, "p")
        w("p=p+", WIDTH[f.e])
      else text(f, f.e, t2, false) end
      w("end")
      if not want then w(f.e == "struct" and "" or "if " .. c .. "~=1 then ", "set_len(", t2, ",p-", a, ")",
        f.e == "struct" and "" or " end") end
    end
    w("end")
  end
  -- A field that is here, at p.
  local function one(f, t)
    local nullable = f.na and version >= f.na and version <= f.nb
    w("do")
    if f.t == "struct" then
      if nullable then
        w("if p+1>n then ", fail(f), "end local mark=byte(s,p+1) if mark~=1 and mark~=255 then ", fail(f), "end p=p+1")
        if not want then w("if mark==255 then add(", t, ",tvb(o+p-1,1),'", f.d, ": null') end") end
        w("if mark==1 then")
      end
      local t2 = t
      if not want then
        t2 = new"t"
        w("local ", t2, "q=p local ", t2, "=add(", t, ",F[", f.i, "],tvb(o+p,0))")
      end
      struct(f.f, t2)
      if not want then w("set_len(", t2, ",p-", t2, "q)") end
      if nullable then w("end") end
    elseif f.t == "array" then array(f, t, nullable)
    elseif WIDTH[f.t] then
      w("if p+", WIDTH[f.t], ">n then ", fail(f), "end")
      if own(f) then value(f, f.t, t, "p") end
      w("p=p+", WIDTH[f.t])
    else text(f, f.t, t, nullable) end
    w("end")
  end
  -- The buffer of tagged fields behind a struct (KIP-482).
  local function tags(fs, t)
    local count, known = new"c", false
    w("if p<n and byte(s,p+1)==0 then p=p+1 else local ", count, " ", count, ",p=varint(s,p,n) if not ", count, " or ",
      count, "*2>n-p then return nil,p,'_tags' end for _=1,", count,
      " do local tag,size tag,p=varint(s,p,n) if not tag then return nil,p,'_tags' end",
      " size,p=varint(s,p,n) if not size or p+size>n then return nil,p,'_tags' end local stop=p+size")
    for _, f in ipairs(fs) do
      if f.g and present(f, version) then
        w(known and "elseif" or "if", " tag==", f.g, " then do local n=stop")
        known = true
        one(f, t)
        w("if p~=stop then ", fail(f), "end end")
      end
    end
    if known then w("else") end
    if not want then w("add(add(", t, ",H.unknown_tag,tvb(o+p,size),tag),H.unknown_tag_bytes,tvb(o+p,size))") end
    if known then w("end") end
    w("p=stop end end")
  end
  function struct(fs, t)
    for _, f in ipairs(fs) do
      if f.by then
        for _, g in ipairs(fs) do if g.n == f.by then g.key = true end end
        w("local k_", f.by)
      end
    end
    local i = 1
    while i <= #fs do
      local f = fs[i]
      if fixed(f) then -- a run of fields of fixed size: one check
        local run, size = {}, 0
        while i <= #fs and (fixed(fs[i]) or fs[i].g or not present(fs[i], version)) do
          local g = fs[i]
          if fixed(g) then
            run[#run + 1] = {g, size}
            size = size + WIDTH[g.t]
          end
          i = i + 1
        end
        w("if p+", size, ">n then") -- what is whole of a run that was cut still shows
        for _, x in ipairs(run) do
          local g, at = x[1], "p+" .. x[2]
          w("if ", at, "+", WIDTH[g.t], ">n then return nil,", at, ",'", g.n, "' end")
          if own(g) then value(g, g.t, t, at) end
        end
        w("end")
        for _, x in ipairs(run) do if own(x[1]) then value(x[1], x[1].t, t, x[2] > 0 and "p+" .. x[2] or "p") end end
        w("p=p+", size)
      else
        if not f.g and present(f, version) then one(f, t) end
        i = i + 1
      end
    end
    if flexible then tags(fs, t) end
  end
  struct(fields, "t")
  w("return p")
  local source = "local F,H,MEANT,add,set_len,add_text,varint,int8,int16,int32,int64,byte,sub,uuid,add_batches,is_hidden,"
    .. "add_payload,add_forwarded,hide,want=...\nreturn function(s,p,n,tvb,o,t) local items=0\n"
    .. table.concat(out, "\n") .. "\nend"
  return assert(load(source, "=kdissect"))(F, H, MEANT, add, set_len, add_text, varint, int8, int16, int32, int64, byte,
    sub, uuid, add_batches, is_hidden, add_payload, add_forwarded, hide, want)
end

-- Layouts, made when the first message of theirs comes: those of a version's number, the newest release's first.
local NOTHING = {}
local layouts = {}
function layout(key, which, version)
  local api = APIS[key]
  if not api or version < api.a or version > api.b then return false end
  local id = (key * 64 + version) * 2 + (which == "q" and 0 or 1) -- known versions are below 64, a packet's need not be
  local found = layouts[id]
  if not found then
    local side = api[which]
    found = {side = side, version = version, fields = {side.f}, leaves = leaves(side.f, version, {}),
      dry = {}, show = {}, pick = {}, hide = {}}
    for _, x in ipairs(side.va) do
      if version >= x.a and version <= x.b then
        found.fields[#found.fields + 1] = x.f
        leaves(x.f, version, found.leaves)
      end
    end
    layouts[id] = found
  end
  return found
end

local function dry(l, i)
  local walk = l.dry[i]
  if not walk then
    walk = compile(l.side, l.fields[i], l.version, NOTHING)
    l.dry[i] = walk
  end
  return walk
end

-- Which of a version's layouts fits s[p..n] to the last byte; nil where none does.
local function fitting(l, s, p, n)
  for i = 1, #l.fields do if dry(l, i)(s, p, n) == n then return i end end
  return nil
end
