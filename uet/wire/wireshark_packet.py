"""How the Wireshark dissector takes a packet from UDP or IP, in Lua: trimming, TSS, CRC."""

from __future__ import annotations

PACKET = r"""
-- TSS -------------------------------------------------------------------------------------------
local function tss(c)
  c.name = "TSS"
  local sp = band(c.tvb(c.at, 1):uint(), TSS_SSI_MASK) ~= 0
  local values, item, whole = take(c, sp and TSS_HEADERS[2] or TSS_HEADERS[1])
  if values.sdi then
    c.secured = string.format("SDI %d AN %d", values.sdi, values.an)
  end
  if values.counter then
    c.secured = c.secured .. string.format(" epoch %d counter %.0f", values.epoch, values.counter)
  end
  if not whole then
    return
  end
  local left = c.stop - c.at
  if c.trimmed or c.stop > c.have then
    rest(c, plain.ciphertext)
  elseif left < ICV_SIZE then
    item:add_proto_expert_info(experts.tss, left .. " octets are too few for the tag")
    rest(c, plain.ciphertext)
  else
    c.size = string.format("%d B encrypted", left - ICV_SIZE)
    c.stop = c.stop - ICV_SIZE
    rest(c, plain.ciphertext)
    c.tree:add(plain.icv, c.tvb(c.stop, ICV_SIZE))
  end
end

-- The packet ------------------------------------------------------------------------------------
local function trailer(c, ip, udp)
  local mode = prefs.crc
  c.check_crc = mode ~= 2
  if mode == 2 or c.trimmed or not ip or c.stop > c.have then
    return nil
  end
  if c.stop - c.at < CRC_SIZE then
    if mode == 1 then
      c.tree:add_proto_expert_info(experts.length, "The packet is too short for its CRC")
    end
    return nil
  end
  local place = c.stop - CRC_SIZE
  local range = c.tvb(place, CRC_SIZE)
  local wanted = crc_of(ip, udp, c.tvb:offset() + place, c.pinfo.number)
  local good = range:uint() == wanted
  if not good and mode == 0 then
    return nil
  end
  c.stop = place
  return { range = range, good = good, wanted = wanted }
end

local function summary(c)
  local said = {}
  local function add(format, value)
    if value then
      said[#said + 1] = string.format(format, value)
    end
  end
  add("%s", c.trimmed and "[trimmed]")
  add("%s", c.name)
  add("%s", c.control)
  add("%s", c.opcode)
  add("%s", c.operation)
  add("%s", c.data)
  add("%s", c.code)
  for _, mark in ipairs(c.marks or {}) do
    add("%s", mark)
  end
  add("PSN %.0f", c.psn)
  add("CACK %.0f", c.cack)
  add("packet 0x%08x", c.packet)
  add("%s", c.pdcs)
  add("%s", c.says)
  add("%s", c.secured)
  add("msg %d", c.message)
  add("%s", c.size)
  add("at %.0f", c.offset)
  return table.concat(said, " ")
end

local function dissect(tvb, pinfo, root, native)
  local offset = tvb:offset()
  local udp = not native and offset - 8 or nil
  local ip = find_ip(udp or offset)
  local short = false
  if ip and not native and udp >= 0 then
    local length = ip.frame(udp + 4, 2):uint()
    ip.shortened = udp + length > ip.stop
    local captured = math.min(ip.stop, ip.frame:len()) - offset
    if length >= 8 and udp + length < ip.stop and captured > tvb:len() then
      tvb = ip.frame(offset, captured):tvb()
      short = true
    end
  end
  local quoted = quoting[1]() or quoting[2]()
  if not quoted then
    pinfo.cols.protocol:set("UET")
    pinfo.cols.info:clear()
  end
  local top = root:add(uet, tvb(0, tvb:len()))
  local c = { tvb = tvb, pinfo = pinfo, tree = top, at = 0, ranges = {}, quoted = quoted }
  c.stop, c.have = tvb:reported_len(), tvb:len()
  if ip and quoted then -- the beginning of a packet, inside an ICMP error: as if capture had cut it
    c.stop = math.max(c.stop, ip.stop - offset)
  elseif ip then
    if trimmed_dscp then
      c.trimmed = trimmed_dscp[ip.dscp]
      if ip.shortened and not c.trimmed then
        top:add_proto_expert_info(experts.length, "UDP length exceeds what IP carries")
      end
    else
      c.trimmed = ip.shortened
    end
  end
  if short then
    top:add_proto_expert_info(experts.length, "UDP length is less than what IP carries")
  end
  if c.trimmed then
    top:add(plain.trimmed, true):set_generated()
    top:add_proto_expert_info(experts.trimmed)
  end
  if native then
    local _, _, whole = take_if_any(c, ENTROPY)
    if not whole then
      return
    end
  end
  if c.at >= math.min(c.stop, c.have) then
    if c.stop <= c.have then
      top:add_proto_expert_info(experts.length, "No octets follow the UDP or entropy header")
    end
    return
  end
  local kind = rshift(tvb(c.at, 1):uint(), 3)
  if kind == TSS then
    tss(c)
  else
    local crc = trailer(c, ip, udp)
    if c.at < c.stop then
      pds(c, kind)
    else
      top:add_proto_expert_info(experts.length, "The packet is nothing but a CRC")
    end
    if crc then
      local item = top:add(plain.crc, crc.range)
      top:add(plain.crc_status, crc.good and 1 or 0):set_generated()
      if not crc.good then
        item:add_proto_expert_info(experts.crc, string.format("CRC should be 0x%08x", crc.wanted))
      end
    end
  end
  local text = summary(c)
  if not quoted then
    pinfo.cols.info:set(text)
  end
  top:set_text("Ultra Ethernet Transport, " .. text)
end

-- The UDP source port is entropy: only the destination port says anything.
function uet.dissector(tvb, pinfo, root)
  local by = pinfo.match_uint
  local native = by == prefs.protocol or (by < 256 and by ~= prefs.port)
  if not native and by == prefs.port and pinfo.dst_port ~= by then
    return 0
  end
  dissect(tvb, pinfo, root, native)
  return tvb:len()
end

-- For source ports that belong to other protocols, with "try heuristic sub-dissectors first".
uet:register_heuristic("udp", function(tvb, pinfo, root)
  if pinfo.dst_port ~= prefs.port then
    return false
  end
  dissect(tvb, pinfo, root, false)
  return true
end)

local ports, protocols = DissectorTable.get("udp.port"), DissectorTable.get("ip.proto")
local port, protocol

local function apply_preferences()
  read_dscp()
  if port ~= prefs.port then
    if port then
      ports:remove(port, uet)
    end
    port = prefs.port
    ports:add(port, uet)
  end
  if protocol ~= prefs.protocol then
    if protocol then
      protocols:remove(protocol, uet)
    end
    protocol = prefs.protocol
    protocols:add(protocol, uet)
  end
end

function uet.init()
  crc_seen, sent, replies, repeats = {}, {}, {}, {}
  apply_preferences()
end

uet.prefs_changed = apply_preferences
apply_preferences()
"""
