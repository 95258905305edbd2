"""The dissector's part that links requests and replies, in Lua.

Requests without a reply, and records of frames, are kept in tables of bounded size.
"""

from __future__ import annotations

LINKS = r"""
-- Links between frames --------------------------------------------------------------------------
local interface_id = Field.new("frame.interface_id")
local known_section, section_number = pcall(Field.new, "frame.section_number")

-- Requests: flow (interface, addresses, PDC) -> PSN -> frame of the last transmission.  The older
-- half is dropped whenever the younger has as many requests as this.
local WAITING = 65536
local young, old, count
-- What is known of frames, by number modulo this: newer frames take the place of older ones.
local FRAMES = 4194304
local answered, asked, firsts
local moments -- when a request was sent, and how long a reply took
local latest -- frame that was looked at

local function forget_links()
  young, old, count, latest = {}, {}, 0, 0
  answered, asked, firsts, moments = {}, {}, {}, {}
end
forget_links()

-- Where a frame was captured: a capture of several ports has a packet once for each.
local places = {}
local function capture_place()
  local id = interface_id()
  local place = id and id.value or 0
  local section = known_section and section_number()
  if section then
    place = place + section.value * 4294967296
  end
  if not places[place] then
    places[place] = format("%.0f/", place)
  end
  return places[place]
end

-- What a table says of a frame, unless a newer one has taken its place.
local function known(list, number)
  return latest - number < FRAMES and list[number % FRAMES] or nil
end

local function last_sent(flow, id)
  local part = young[flow]
  local last = part and part[id]
  if not last then
    part = old[flow]
    last = part and part[id]
  end
  return last and latest - last < FRAMES and last or nil
end

local function remember(flow, id, number)
  if count >= WAITING then
    old, young, count = young, {}, 0
  end
  local part = young[flow]
  if not part then
    part = {}
    young[flow] = part
  end
  part[id] = number
  count = count + 1
end

local function learn(c, flow, id, role, number)
  local slot = number % FRAMES
  latest = number
  answered[slot], asked[slot], firsts[slot], moments[slot] = nil, nil, nil, nil
  local now = c.pinfo.rel_ts
  local last = (role == "reply" or c.retx) and last_sent(flow, id)
  if role == "request" then
    firsts[slot] = last and (known(firsts, last) or last) or nil
    moments[slot] = now
    remember(flow, id, number)
  elseif last then
    local first = known(firsts, last) or last
    if not known(answered, first) then
      if latest - first < FRAMES then
        answered[first % FRAMES] = number
      end
      answered[last % FRAMES] = number
    end
    asked[slot], moments[slot] = last, now - moments[last % FRAMES]
  end
end

-- Links a packet between `ends` (addresses as octets) by its PDC and PSN, in a `flow` of ids.  The
-- first of tshark's two passes may be without a tree, and so without interfaces; then the second
-- has to learn.
local function link(c, item, ends, flow, id, role)
  local number = c.pinfo.number
  if number > latest then
    learn(c, capture_place() .. ends .. flow, id, role, number)
  end
  if not c.show then
    return
  end
  if role == "request" then
    local first = known(firsts, number)
    if first then
      item:add(plain.first, first):set_generated()
    end
    local reply = known(answered, number) or first and known(answered, first)
    if reply then
      item:add(plain.reply, reply):set_generated()
    end
    return
  end
  local request = known(asked, number)
  if request then
    item:add(plain.asked, request):set_generated()
    local delay = moments[number % FRAMES]
    local seconds = floor(delay)
    local rest_ns = floor((delay - seconds) * 1e9 + 0.5)
    item:add(plain.delay, NSTime(seconds, rest_ns)):set_generated()
  end
end
"""
