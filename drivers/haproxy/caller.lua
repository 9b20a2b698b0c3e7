-- Made by Outrigger: who a certificate is of.
--
-- HAProxy has no fetch for the names of a certificate but those of its subject, so the
-- certificate is read here. What it says is the one URI among the subject alternative
-- names. Whatever is not as it should be has none: who has none, or several, is nobody.

local SEQUENCE, OBJECT, OCTETS, EXTENSIONS, URI = 0x30, 0x06, 0x04, 0xa3, 0x86
local SUBJECT_ALT_NAME = "\x55\x1d\x11"

-- element reads the element of DER at a position: its tag, and where its content begins
-- and ends. It returns nothing if it is not whole before the end.
local function element(der, at, stop)
  local tag, length = der:byte(at, at + 1)
  local first = at + 2
  if not length or first - 1 > stop then return end
  if length >= 0x80 then
    local bytes = length - 0x80
    if bytes < 1 or bytes > 3 or first + bytes - 1 > stop then return end
    length = 0
    for i = first, first + bytes - 1 do length = length * 256 + der:byte(i) end
    first = first + bytes
  end
  local last = first + length - 1
  if last > stop then return end
  return tag, first, last
end

-- elements returns those between two positions, as {tag, first, last}, or nothing if they
-- do not end where the last one does.
local function elements(der, at, stop)
  local all = {}
  while at <= stop do
    local tag, first, last = element(der, at, stop)
    if not tag then return end
    all[#all + 1] = { tag = tag, first = first, last = last }
    at = last + 1
  end
  return all
end

-- within returns the elements in the only element between two positions.
local function within(der, at, stop, tag)
  local all = elements(der, at, stop)
  if all and #all == 1 and all[1].tag == tag then return elements(der, all[1].first, all[1].last) end
end

local function extensions(der)
  local certificate = within(der, 1, #der, SEQUENCE)
  local body = certificate and certificate[1]
  local fields = body and body.tag == SEQUENCE and elements(der, body.first, body.last) or {}
  for _, field in ipairs(fields) do
    if field.tag == EXTENSIONS then return within(der, field.first, field.last, SEQUENCE) end
  end
end

-- uri returns the URI, or "". It takes hexadecimal digits, since HAProxy hands over
-- bytes only up to the first that is zero.
local function uri(digits)
  local der = digits:gsub("%x%x", function(pair) return string.char(tonumber(pair, 16)) end)
  local found
  for _, extension in ipairs(extensions(der) or {}) do
    local parts = elements(der, extension.first, extension.last) or {}
    local id, value = parts[1], parts[#parts]
    if id and id.tag == OBJECT and der:sub(id.first, id.last) == SUBJECT_ALT_NAME then
      local names = value.tag == OCTETS and within(der, value.first, value.last, SEQUENCE)
      if not names then return "" end
      for _, name in ipairs(names) do
        if name.tag == URI then
          if found then return "" end
          found = der:sub(name.first, name.last)
        end
      end
    end
  end
  -- What is written into headers and logs has nothing in it that could end them.
  if not found or not found:match("^[%w%-%._:/]+$") then return "" end
  return found
end

core.register_converters("uri", uri)
