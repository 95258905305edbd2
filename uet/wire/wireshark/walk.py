"""The dissector's part that walks over PDS and SES headers, in Lua.

Which header follows which, and where a field lies in it, is in the tables that
:mod:`uet.wire.wireshark.dissector` generates.  Items are made only of what somebody looks at:
nothing while a capture is opened, the fields of a display filter while it is applied, all when a
packet is shown.
"""

from __future__ import annotations

WALK = r"""
-- Headers ---------------------------------------------------------------------------------------
-- A cursor `c` walks over `c.tvb`, whose first octets are the string `c.s`: `at` moves, `stop` is
-- where the packet ends, `have` where the capture does, `limit` the nearer of them.  `c.show` is
-- true if anything of UET is looked at, `c.all` if everything is; `c.say` asks for the summary
-- line, for which the rest is.

local function top_of(c)
  if not c.top then
    c.top = c.root:add(uet, c.tvb(0, c.tvb:len()))
  end
  return c.top
end

local function is_shown(c, field)
  return c.all or c.top:referenced(field)
end

local function expert(c, item, which, text)
  item = item or top_of(c)
  if text then
    item:add_proto_expert_info(which, text)
  else
    item:add_proto_expert_info(which)
  end
end

local function payload_words(values)
  local parts = {}
  for _, part in ipairs(CONTROL_PAYLOAD[values.ctl_type] or NACK_PAYLOAD[values.nack_code] or {}) do
    local number = floor(values.payload_word / 2 ^ part[2]) % 2 ^ part[3]
    parts[#parts + 1] = format("%s %.0f", part[1], number)
  end
  return parts[1] and table.concat(parts, " ")
end

-- One field; returns the item of the flags once there is one.
local function draw_field(c, parent, entry, flags)
  local range = c.tvb(c.at + entry.octet, entry.octets)
  local tree = parent
  if entry.flag then
    if not flags and is_shown(c, plain.flags) then
      flags = parent:add(plain.flags, c.tvb(c.at, 2))
    end
    tree = flags or parent
  end
  if is_shown(c, entry.field) then
    local item = entry.bit and tree:add(entry.field, range, range:bitfield(entry.bit, entry.width))
      or tree:add(entry.field, range)
    if c.all then
      local value = entry.octets <= 4 and range:bitfield(entry.from, entry.bits)
      if entry.flag and value == 1 and entry.bits == 1 and not entry.reserved then
        tree:append_text(" " .. entry.key:upper())
      end
      if entry.unit and value then
        item:append_text(format(" (%.0f %s)", value * entry.scale, entry.unit))
      end
      if entry.key == "payload_word" and c.says then
        item:append_text(" (" .. c.says .. ")")
      end
    end
  end
  if entry.shared and is_shown(c, entry.shared) then
    if entry.octets <= 4 then
      tree:add(entry.shared, range, range:bitfield(entry.from, entry.bits)):set_hidden()
    else
      tree:add(entry.shared, range):set_hidden()
    end
  end
  for _, alias in ipairs(entry.aliases or {}) do
    if is_shown(c, alias) then
      tree:add(alias, range):set_hidden()
    end
  end
  for _, joined in ipairs(entry.joined or {}) do
    if c.at + entry.octet + joined.octets <= c.have and is_shown(c, joined.field) then
      tree:add(joined.field, c.tvb(c.at + entry.octet, joined.octets)):set_hidden()
    end
  end
  return flags
end

-- The item of a header of which `shown` octets are there.
local function draw(c, header, shown)
  local item, flags = c.top, nil
  local field = header.field or plain[header.sublayer]
  if is_shown(c, field) then
    item = item:add(field, c.tvb(c.at, shown))
    item:set_text(header.title)
  end
  for _, entry in ipairs(header) do
    if entry.octet + entry.octets <= shown then
      flags = draw_field(c, item, entry, flags)
    end
  end
  return item
end

-- The values of a header of which the first `left` octets are there.
local function decode_part(c, header, left)
  local values = header.decode(sub(c.s, c.at + 1, c.at + left) .. ("\0"):rep(header.size), 1)
  for _, entry in ipairs(header) do
    if entry.octet + entry.octets > left then
      values[entry.key] = nil
    end
  end
  return values
end

-- Takes the next header: its values, its item if there is one, and whether all of it is there.
local function take(c, header)
  local left, size = c.limit - c.at, header.size
  local whole = left >= size
  local values = whole and header.decode(c.s, c.at + 1) or decode_part(c, header, left)
  local shown = whole and size or left
  if values.payload_word then
    c.says = payload_words(values)
  end
  local item = c.show and draw(c, header, shown) or nil
  c.at = c.at + shown
  if values.reserved then
    expert(c, item, experts.reserved)
  end
  if not whole and not c.trimmed and c.stop <= c.have then
    expert(c, item, experts[header.sublayer],
      format("%s needs %d octets, %d are left", header.title, size, left))
  end
  return values, item, whole
end

-- The same for a header of which nothing may be left.
local function take_if_any(c, header)
  if c.limit > c.at then
    return take(c, header)
  end
  if not c.trimmed and c.stop <= c.have then
    expert(c, nil, experts[header.sublayer],
      format("%s needs %d octets, 0 are left", header.title, header.size))
  end
  return {}, nil, false
end

local function append(c, item, text)
  if item and c.all then
    item:append_text(text)
  end
end

local function rest(c, field)
  local left = c.limit - c.at
  if left <= 0 then
    return
  end
  field = c.trimmed and plain.truncated or field
  local item
  if c.show and is_shown(c, field) then
    item = c.top:add(field, c.tvb(c.at, left))
    local whole = c.stop - c.at
    append(c, item, left < whole and format(" (%d of %d octets captured)", left, whole)
      or format(" (%d octets)", left))
  end
  c.at = c.at + left
  return item
end

-- What octets beyond those that the headers account for may be.
local function crc_hint(c, surplus)
  return surplus == CRC_SIZE and not c.crc and " (a CRC that does not verify?)" or ""
end

local function trailing(c, behind)
  local left = c.stop - c.at
  if left <= 0 then
    return
  end
  local unseen = c.stop > c.have and left == CRC_SIZE
  local item = rest(c, plain.payload)
  if not c.trimmed and not unseen then
    expert(c, item, experts.trailing, format("%d octets follow %s, which has no payload%s", left,
      behind, crc_hint(c, left)))
  end
end

local function payload(c, length)
  local left = c.stop - c.at
  c.carried = left
  if c.stop > c.have and c.check_crc and PAYLOAD_MTUS[left - CRC_SIZE] then
    c.carried = left - CRC_SIZE -- the capture was cut: most likely a CRC that nobody sees
  end
  local item = rest(c, plain.payload)
  local unseen = c.stop > c.have and c.check_crc and CRC_SIZE or 0
  if length and not c.trimmed and left ~= length and left ~= length + unseen then
    expert(c, item, experts.length, format("payload_length is %d, but %d octets follow%s", length,
      left, crc_hint(c, left - length)))
  end
end

-- SES -------------------------------------------------------------------------------------------
local function check_version(c, item, values, whole)
  if whole and values.version ~= 0 then
    expert(c, item, experts.version)
  end
end

local function size_text(c, values)
  local total = values.request_length
  local here = values.payload_length or (values.som == 1 and values.eom == 1 and total) or c.carried
  if not total then
    return here and format("%d B", here) or nil
  end
  if not here or here == total or NO_PAYLOAD[values.opcode] then
    return format("%d B", total)
  end
  return format("%d of %d B", here, total)
end

local function extensions(c, choice)
  for _, extension in ipairs(choice) do
    local operation = c.at < c.limit and byte(c.s, c.at + 1) or 0
    local found, item, whole = take_if_any(c, extension[operation] or extension.default)
    if found.atomic_opcode then
      c.operation = names_of.atomic_opcode[found.atomic_opcode]
      append(c, item, ", " .. (c.operation or "reserved operation"))
    end
    if not whole then
      return false
    end
  end
  return true
end

local function request(c, next_hdr)
  local at, limit = c.at, c.limit
  local opcode = at < limit and byte(c.s, at + 1) % 64 or 0
  local flags = at + 1 < limit and byte(c.s, at + 2) or 0
  local choice = REQUESTS[next_hdr]
  local variants = choice[opcode] or choice.default
  local header = band(flags, choice.flag) ~= 0 and variants[2] or variants[1]
  local values, item, whole = take_if_any(c, header)
  if not values.opcode then
    return
  end
  local provider = reference_provider and PROVIDER_OPCODES[opcode]
  local known = provider or names_of.opcode[opcode]
  local name = known or format("opcode 0x%02x", opcode)
  c.opcode = name
  append(c, item, ", " .. name)
  check_version(c, item, values, whole)
  if whole then
    local extension = provider and PROVIDER_EXTENSIONS[opcode] or EXTENSIONS[opcode]
    whole = not extension or extensions(c, extension)
  end
  if whole and not known then
    expert(c, item, experts.opcode, format("Opcode 0x%02x is none of UES 1.0%s", opcode,
      PROVIDER_OPCODES[opcode] and "; the UEC reference provider has an extension behind it:"
        .. " see the preference" or ""))
    payload(c) -- whatever it is made of
  elseif whole and NO_PAYLOAD[opcode] then
    trailing(c, "a " .. name .. " request")
  elseif whole then
    payload(c, values.payload_length)
  end
  if c.say then
    c.message = values.message_id
    c.size = size_text(c, values)
    c.offset = values.message_offset
  end
end

local function response(c, next_hdr)
  local values, item, whole = take_if_any(c, RESPONSES[next_hdr])
  local code = values.return_code
  if code then
    local name = names_of.return_code[code] or format("return code 0x%02x", code)
    c.code = name
    append(c, item, ", " .. name)
    if not GOOD[code] then
      expert(c, item, experts.failed, "The operation failed: " .. name)
    end
  end
  check_version(c, item, values, whole)
  if whole then
    if values.payload_length then
      c.data = "DATA"
      payload(c, values.payload_length)
      c.size = format("%d B", values.payload_length)
    else
      trailing(c, "a response")
    end
  end
  c.message = values.message_id or values.response_message_id
  c.offset = values.message_offset
end

-- PDS -------------------------------------------------------------------------------------------
local function put_derived(c, item, name, value)
  value = value % 4294967296
  if c.show and is_shown(c, derived[name]) then
    item:add(derived[name], value):set_generated()
  end
  return value
end

-- The PSNs whose bits are set, the lowest bit standing for `first`.
local function sacked(range, first)
  local runs, from = {}, nil
  local bits_there = range:len() * 8
  for index = 0, bits_there do
    local set = index < bits_there and range:bitfield(bits_there - 1 - index, 1) == 1
    if set and not from then
      from = index
    elseif from and not set then
      local low, high = (first + from) % 4294967296, (first + index - 1) % 4294967296
      runs[#runs + 1] = low == high and format("%.0f", low) or format("%.0f-%.0f", low, high)
      from = nil
    end
  end
  return #runs > 0 and table.concat(runs, ", ") or "none"
end

local function show_sacked(c, item, header, at, first)
  for _, entry in ipairs(header) do
    if entry.key == "sack_bitmap" and at + entry.octet + entry.octets <= c.have
      and is_shown(c, plain.sacked) then
      local range = c.tvb(at + entry.octet, entry.octets)
      item:add(plain.sacked, range, sacked(range, first)):set_generated()
    end
  end
end

local function link_pds(c, item, kind, v, answers)
  local source, destination = c.source, c.destination
  if v.psn and v.spdcid and (kind ~= CP or OWN_PSN[v.ctl_type]) then
    link(c, item, source .. destination, v.spdcid, v.psn, "request")
  elseif v.dpdcid and answers then
    link(c, item, destination .. source, v.dpdcid, answers, "reply")
  elseif kind == RUDI_REQ and v.pkt_id then
    link(c, item, source .. destination, "rudi", v.pkt_id, "request")
  elseif v.pkt_id or v.nack_pkt_id then
    link(c, item, destination .. source, "rudi", v.pkt_id or v.nack_pkt_id, "reply")
  end
end

local function flag_names(v)
  local marks = v.syn == 1 and "SYN" or nil
  local function add(mark)
    marks = marks and marks .. " " .. mark or mark
  end
  if v.ar == 1 then add("AR") end
  if v.retx == 1 then add("RETX") end
  if v.m == 1 then add("M") end
  if v.p == 1 then add("P") end
  if v.isrod == 1 then add("ISROD") end
  if v.req and v.req ~= 0 then
    add("REQ=" .. (names_of.req[v.req] or format("%d", v.req)))
  end
  return marks
end

local function describe_pds(c, kind, v, item, header, at)
  c.retx = v.retx == 1
  if v.clear_psn_offset and v.psn then
    put_derived(c, item, "clear_psn", v.psn + v.clear_psn_offset)
  end
  if v.psn_offset then
    put_derived(c, item, "start_psn", v.psn - v.psn_offset)
  end
  local acked = v.ack_psn_offset and v.cack_psn
    and put_derived(c, item, "ack_psn", v.cack_psn + v.ack_psn_offset)
  if v.sack_psn_offset then
    local first = put_derived(c, item, "sack_base_psn", v.cack_psn + v.sack_psn_offset)
    if c.show then
      show_sacked(c, item, header, at, first)
    end
  end
  if c.source then
    link_pds(c, item, kind, v, acked or v.nack_psn)
  end
  if c.retx and v.psn then
    expert(c, item, experts.retx)
  end
  if v.nack_code then
    c.code = names_of.nack_code[v.nack_code] or format("code 0x%02x", v.nack_code)
    expert(c, item, experts.nack, "The packet was refused: " .. c.code)
  end
  if not c.say then
    return
  end
  c.control = v.ctl_type and (names_of.ctl_type[v.ctl_type] or format("type %d", v.ctl_type))
  c.marks = (v.syn or v.retx) and flag_names(v)
  local in_use = kind ~= CP or OWN_PSN[v.ctl_type] -- the others leave their PSN field alone
  c.psn = in_use and v.psn or acked or v.nack_psn
  c.cack = v.cack_psn
  c.packet = v.pkt_id or v.nack_pkt_id
  if v.spdcid then
    c.pdcs = v.dpdcid and format("PDC %d->%d", v.spdcid, v.dpdcid)
      or format("PDC %d->%s", v.spdcid, v.syn == 1 and "new" or "?")
  end
end

-- The flag of ACKs that UES reserves; false if the packet ends within what it announces.
local function expected_psn(c, item, at)
  if not reference_provider then
    expert(c, item, experts.reserved)
    return true
  end
  if c.show and is_shown(c, plain.epsn_flag) then
    item:add(plain.epsn_flag, c.tvb(at + 1, 1))
  end
  local _, _, whole = take_if_any(c, EXPECTED_PSN)
  return whole
end

local function pds(c, kind)
  local choice = PACKETS[kind]
  c.name = names_of.type[kind] or format("reserved type %d", kind)
  if not choice then
    expert(c, rest(c, plain.payload), experts.type, format("Packet type %d is reserved", kind))
    return
  end
  local at, limit = c.at, c.limit
  local flags = at + 1 < limit and byte(c.s, at + 2) or 0
  local selector = choice.octet and at + choice.octet < limit
      and rshift(byte(c.s, at + choice.octet + 1), choice.shift) or 0
  local variants = choice[selector] or choice.default
  local header = band(flags, choice.flag) ~= 0 and variants[2] or variants[1]
  local values, item, whole = take(c, header)
  if item and c.all then
    item:set_text("PDS: " .. c.name)
  end
  describe_pds(c, kind, values, item, header, at)
  if not whole then
    return
  end
  if ACKS[kind] and band(flags, EXPECTED_PSN_FLAG) ~= 0 and not expected_psn(c, item, at) then
    return
  end
  if choice.state then
    local _, _, all = take_if_any(c, choice.state)
    if not all then
      return
    end
  end
  if kind == CP then
    if values.ctl_type == NEGOTIATION then
      local octets = c.tvb(c.at - 4, math.max(4, c.limit - c.at + 4))
      c.says = "payload " .. tostring(octets:bytes()):lower()
      rest(c, plain.negotiation)
    end
    trailing(c, "a control packet")
    return
  end
  local next_hdr = values.next_hdr
  if not choice.sensible[next_hdr] then
    expert(c, item, experts.next_hdr)
  end
  if choice.ends then
    trailing(c, "a NACK")
  elseif REQUESTS[next_hdr] then
    request(c, next_hdr)
  elseif RESPONSES[next_hdr] then
    response(c, next_hdr)
  elseif next_hdr == 0 then
    payload(c)
  else
    rest(c, plain.payload)
  end
end
"""
