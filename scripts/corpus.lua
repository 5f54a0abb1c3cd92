-- corpus.lua: prose out of HTML pages, for corpus.sh.
--   lua5.4 corpus.lua FILES.txt OUT.txt
-- One paragraph a line, `<|endoftext|>` between pages. A paragraph is kept when it reads like a
-- sentence: long enough, mostly letters, ends in punctuation, and was not seen before.
local list, out = arg[1], arg[2]
if not (list and out) then
    io.stderr:write("usage: lua5.4 corpus.lua FILES.txt OUT.txt\n")
    os.exit(2)
end

local named = { amp = "&", lt = "<", gt = ">", quot = '"', apos = "'", nbsp = " ", mdash = "—",
    ndash = "–", hellip = "…", lsquo = "'", rsquo = "'", ldquo = '"', rdquo = '"', copy = "©",
    times = "×", minus = "−", middot = "·", eacute = "é" }
local plain = { ["“"] = '"', ["”"] = '"', ["‘"] = "'", ["’"] = "'", ["\u{a0}"] = " ",
    ["\u{ad}"] = "", ["¶"] = "" }

local function entity(e)
    local n = e:match "^#(%d+)$"
    local x = e:match "^#[xX](%x+)$"
    local cp = n and tonumber(n) or x and tonumber(x, 16)
    if cp then
        return cp > 31 and cp < 0x10FFFF and not (cp >= 0xD800 and cp <= 0xDFFF) and utf8.char(cp) or " "
    end
    return named[e] or " "
end

local function drop(html, tag)
    -- Whole elements that never hold prose; matched without nesting, which HTML manuals respect.
    return (html:gsub("<" .. tag .. "[%s>].-</" .. tag .. ">", " "))
end

local function text_of(fragment)
    local s = fragment:gsub("<[^>]*>", " "):gsub("&([#%w]+);", entity)
    s = s:gsub("[\xC2-\xF4][\x80-\xBF]*", plain)
    s = s:gsub("%s+", " "):gsub(" ([.,;:!?)])", "%1"):gsub("%( ", "(")
    return (s:gsub("^ ", ""):gsub(" $", ""))
end

local function prose(s)
    if #s < 80 or #s > 4000 then return false end
    if not s:match "^[\"'(]?%u" or not s:match "[.!?:][\"')]?$" then return false end
    local _, letters = s:gsub("[%a ]", "")
    if letters < 0.9 * #s then return false end
    local _, odd = s:gsub("[{}<>=_|\\/@#$%%^~`*+%[%]]", "")
    if odd > 0.015 * #s then return false end
    local _, words = s:gsub("%a+", "")
    return words >= 12 and utf8.len(s) ~= nil
end

local seen, docs, kept, bytes = {}, 0, 0, 0
local o = assert(io.open(out, "w"))
for path in io.lines(list) do
    local f
    if path:match "%.gz$" then
        f = io.popen("gzip -dc '" .. path:gsub("'", "'\\''") .. "'")
    else
        f = io.open(path, "rb")
    end
    local html = f and f:read "a" or ""
    if f then f:close() end
    if utf8.len(html) and #html < 8e6 then
        for _, tag in ipairs { "script", "style", "pre", "table", "nav", "head" } do
            html = drop(html, tag)
        end
        local doc = {}
        for p in html:gmatch "<[pP][%s>][^<]*.-</[pP]>" do
            local s = text_of(p:gsub("^<[pP][^>]*>", ""))
            if prose(s) and not seen[s] then
                seen[s] = true
                doc[#doc + 1] = s
            end
        end
        local text = table.concat(doc, "\n")
        if #text >= 400 then
            o:write(docs > 0 and "<|endoftext|>\n" or "", text, "\n")
            docs, kept, bytes = docs + 1, kept + #doc, bytes + #text
        end
    end
end
assert(o:close())
print(string.format("%d documents, %d paragraphs, %.1f MB", docs, kept, bytes / 1e6))
