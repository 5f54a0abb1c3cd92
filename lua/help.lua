-- help.lua: help on anything, from the one registry (op descriptors and function documentation).
local sd, internal = ...

local docs = internal.registry "sd_docs"
local docs_of = internal.registry "sd_docs_of"

local function entry(name)
    local d = docs[name]
    if d and d.kind == "op" then
        local o = internal.op(name)
        if o then o.kind = "op" end
        return o
    end
    return d
end

local function names(filter)
    local out = {}
    for name, d in pairs(docs) do
        if filter(name, d) then out[#out + 1] = name end
    end
    table.sort(out)
    return out
end

local function wrap(s, width, indent)
    local out = {}
    for para in (s .. "\n\n"):gmatch "(.-)\n\n" do
        local line = indent
        for word in para:gmatch "%S+" do
            if line ~= indent and utf8.len(line) + 1 + (utf8.len(word) or #word) > width then
                out[#out + 1] = line
                line = indent
            end
            line = line == indent and indent .. word or line .. " " .. word
        end
        out[#out + 1] = line
        out[#out + 1] = ""
    end
    out[#out] = nil
    return table.concat(out, "\n")
end

local function page(name)
    local d = entry(name)
    local width = math.min((internal.size()), 100)
    if d.kind == "op" then return (internal.op_help(name, width):gsub("%s+$", "")) end
    local out = { d.signature or name, wrap(d.summary, width, "  ") }
    if d.details then out[#out + 1] = "\n" .. wrap(d.details, width, "  ") end
    if d.example then
        out[#out + 1] = "\n  Example:\n" .. ("\n" .. d.example):gsub("\n", "\n    "):sub(2)
    end
    return table.concat(out, "\n")
end

local function list(out, title, ns)
    local width = math.min((internal.size()), 100)
    if #ns == 0 then return end
    out[#out + 1] = title
    local w = 0
    for _, n in ipairs(ns) do w = math.max(w, #n) end
    w = math.min(w, 22)
    for _, n in ipairs(ns) do
        local s = "  " .. n .. (" "):rep(w - #n) .. "  " .. entry(n).summary
        if utf8.len(s) and utf8.len(s) > width then
            s = s:sub(1, utf8.offset(s, width - 3)) .. "..."
        end
        out[#out + 1] = s
    end
end

local classes = {
    ["tensor"] = { "tensor:", "tensor" },
    ["result table"] = { "table:" },
    ["model"] = { "model:", "open" },
    ["text"] = { "text:", "text" },
    ["tokenizer"] = { "tokenizer:", "tokenizer" },
}

local function class_page(class)
    local prefix = classes[class][1]
    local out = { "A " .. class .. ". Methods:" }
    list(out, "", names(function(n) return n:sub(1, #prefix) == prefix end))
    table.remove(out, 2)
    out[#out + 1] = ("help \"%sNAME\" tells more."):format(prefix)
    return table.concat(out, "\n")
end

local function overview()
    local out = {
        "sd measures routing and filtering in attention. Type an expression to see its value.",
        "  help(x), ?x or x?   about a function, a value, a method (\"tensor:sum\") or a column",
        "  help \"words\"        searches; Tab completes; a trailing ; hides a value; _ is the last",
        "  Ctrl-C stops, Ctrl-D leaves", "" }
    list(out, "Operations:", names(function(_, d) return d.kind == "op" end))
    list(out, "Functions:", names(function(_, d) return d.kind == "function" end))
    out[#out + 1] = "Methods: help \"tensor\", help(m), help(w) for those of a value."
    return table.concat(out, "\n")
end

-- A result column, of a table at hand or of any the program knows.
local function column(name)
    local doc = internal.column and internal.column(name)
    return doc and (name .. "\n" .. wrap(doc, math.min((internal.size()), 100), "  "))
end

-- Where all words are found: 1 in the name (a method's own name counts whole), 2 in the summary, 3
-- elsewhere; nil when one is missing.
local function rank(n, words)
    local d = entry(n)
    if not d then return nil end
    local name, summary = n:lower(), (d.summary or ""):lower()
    local text = name .. " " .. summary .. " " .. (d.details or ""):lower()
    for _, a in ipairs(d.args or {}) do
        text = text .. " " .. a.name .. " " .. (a.doc or ""):lower()
    end
    local r = 1
    for _, w in ipairs(words) do
        if name:find(w, 1, true) then -- as good as can be
        elseif summary:find(w, 1, true) then r = math.max(r, 2)
        elseif text:find(w, 1, true) then r = 3
        else return nil end
    end
    return r
end

local function search(q)
    local words, ranks = {}, {}
    for w in q:lower():gmatch "%S+" do words[#words + 1] = w end
    local hits = names(function(n)
        ranks[n] = #words > 0 and rank(n, words) or nil
        return ranks[n] ~= nil
    end)
    if #hits == 0 then
        local all = names(function() return true end)
        local near = internal.suggest(q, all)
        return ("nothing about \"%s\""):format(q) ..
            (near and (": did you mean %s?"):format(near) or "; help() lists everything")
    end
    if #hits == 1 then return page(hits[1]) end
    table.sort(hits, function(a, b)
        if ranks[a] ~= ranks[b] then return ranks[a] < ranks[b] end
        return a < b
    end)
    local out = {}
    list(out, ("About \"%s\":"):format(q), hits)
    return table.concat(out, "\n")
end

local function by_name(q)
    if docs[q] then
        return classes[q] and page(q) .. "\n\n" .. class_page(q) or page(q)
    end
    if classes[q] then return class_page(q) end
    local c = column(q)
    if c then return c end
    local methods = names(function(n) return n:match ":(.+)$" == q end)
    if #methods == 1 then return page(methods[1]) end
    if #methods > 1 then
        local out = {}
        for i, n in ipairs(methods) do out[i] = page(n) end
        return table.concat(out, "\n\n")
    end
    return search(q)
end

local function about(v)
    local t = type(v)
    if v == nil then return overview() end
    if t == "string" then return by_name(v) end
    if t == "function" then
        local name = docs_of[v]
        if name and docs[name] then return page(name) end
        local own = internal.show(v)
        if own:match ": a function of Lua$" then return own .. " itself; see the Lua 5.4 manual" end
        return internal.show(v) .. "\n  a function without documentation"
    end
    local class = internal.class(v)
    if class then return tostring(v) .. "\n\n" .. class_page(class) end
    if t == "table" then
        local out, ns = {}, {}
        for _, f in pairs(v) do
            if docs_of[f] and docs[docs_of[f]] then ns[#ns + 1] = docs_of[f] end
        end
        table.sort(ns)
        if #ns > 0 and v ~= sd then
            list(out, "Functions:", ns)
            return table.concat(out, "\n")
        end
        if v == sd then return overview() end
    end
    return internal.show(v) .. "\n  a " .. t
end

internal.help = about

-- Printed whole, from scripts too: asked for, so not cut to a screen.
function sd.help(...)
    if select("#", ...) > 0 and (...) == nil then
        print "nil: no such name (help() lists everything, help \"words\" searches)"
    else
        print(about((...)))
    end
end
internal.doc {
    name = "help", fn = sd.help, kind = "function", signature = "help([x])",
    summary = "Prints help on a function, value, method, column or topic; help \"words\" searches.",
    details = "At the prompt also ?x and x?. help() lists everything.",
    example = "help(heads)\nhelp 'tensor:sum'",
}

-- The manual page's source (sd --help-man).
local function roff(s)
    return (s:gsub("\\", "\\e"):gsub("%-", "\\-"):gsub("\n%.", "\n\\&."):gsub("^%.", "\\&."))
end

function internal.man(options)
    local out = {
        ('.TH SD 1 "" "sd %s" "User Commands"'):format(sd.version), ".SH NAME",
        "sd \\- measures and cuts routing and filtering in attention", ".SH SYNOPSIS",
        ".B sd", "[options] [script [args]]", ".SH DESCRIPTION",
        "An interactive shell and script host (Lua 5.4) for the spectra of attention: budgets of the",
        "skew (routing) and symmetric (filtering) parts of every head, effective ranks beside their",
        "nulls, on weights and on real text; cutting, linearising and training models.",
        ".SH OPTIONS", ".nf", roff(options), ".fi", ".SH EXIT STATUS",
        "0 ok, 1 error, 2 usage, 3 input file or format, 4 numerical failure, 5 optional program",
        "missing, 6 output not written, 130 interrupted." }
    local function section(title, kind)
        out[#out + 1] = ".SH " .. title
        for _, n in ipairs(names(function(_, d) return d.kind == kind end)) do
            local d = entry(n)
            out[#out + 1] = ".TP\n.B " .. roff(d.signature or n)
            out[#out + 1] = roff(d.summary) .. (d.summary:match "[.?!]$" and "" or ".")
            if d.details then out[#out + 1] = roff(d.details:gsub("\n\n", "\n")) end
            for _, a in ipairs(d.args or {}) do
                out[#out + 1] = ".br\n.I " .. roff(a.name) .. "\n" .. roff(a.doc or "") ..
                    (a.choices and " (" .. roff(a.choices) .. ")" or "") ..
                    (a.default and " [" .. roff(a.default) .. "]" or "")
            end
        end
    end
    section("OPERATIONS", "op")
    section("FUNCTIONS", "function")
    section("METHODS", "method")
    return table.concat(out, "\n") .. "\n"
end

-- ?topic and topic? at the prompt: the text between is a name, a method or words.
function internal.topic(s)
    s = s:match "^%s*(.-)%s*$"
    if s == "" then return overview() end
    local q = s:match '^"(.*)"$' or s:match "^'(.*)'$"
    if q then return by_name(q) end
    if docs[s] then return page(s) end
    local object, method = s:match "^([%a_][%w_.]*):([%a_][%w_]*)$"
    if object then
        local class = internal.class(internal.resolve(object))
        if class and docs[classes[class][1] .. method] then
            return page(classes[class][1] .. method)
        end
        return by_name(method)
    end
    local value, col = s:match "^([%a_][%w_.]*)%.([%a_][%w_]*)$" -- ?w.pr
    local w = value and internal.resolve(value)
    if w and internal.class(w) == "result table" then
        local ok, doc = pcall(w.doc, w, col)
        if ok then return ("%s, a column of %s\n  %s"):format(col, value, doc ~= "" and doc or "no description") end
    end
    local v = s:match "^[%a_][%w_.]*$" and internal.resolve(s)
    if v ~= nil and v then return about(v) end
    return by_name(s)
end
