-- golden.lua: transcripts of sessions, compared with what the program answers now.
--   build/sd tests/repl/golden.lua [--accept] FILE...
-- In a transcript, lines that start with "sd> " or ">> " are typed, the others are answers; lines
-- that start with "#" before the first prompt are comment. --accept rewrites the answers.
-- Numbers with a decimal point may differ by 1e-6 of their size or by one in the last place printed:
-- processors and builds round differently. Everything else is equal.
local sd_program = assert(os.getenv "SD_PROGRAM")
local accept, files = false, {}
for _, a in ipairs(arg) do
    if a == "--accept" then accept = true else files[#files + 1] = a end
end

local function read(path)
    local f = assert(io.open(path, "rb"))
    local s = f:read "a"
    f:close()
    return s
end

local function inputs(text)
    local head, lines, started = {}, {}, false
    for line in text:gmatch "([^\n]*)\n" do
        local typed = line:match "^sd> (.*)$" or line:match "^>> (.*)$" or line:match "^sd>$" and ""
            or line:match "^>>$" and ""
        if typed then
            started = true
            lines[#lines + 1] = typed
        elseif not started then
            head[#head + 1] = line
        end
    end
    return head, lines
end

-- The program prints prompts and answers; the typed lines are put back between them.
local function replay(lines)
    local tmp = os.tmpname()
    local f = assert(io.open(tmp, "wb"))
    f:write(table.concat(lines, "\n"), "\n")
    f:close()
    local p = assert(io.popen(("XDG_CONFIG_HOME=/nonexistent COLUMNS=100 '%s' -i -q < %s 2>&1")
        :format(sd_program, tmp)))
    local out = p:read "a"
    local ok, why, code = p:close()
    os.remove(tmp)
    local res, pos, k = {}, 1, 0
    while true do
        local prompt = out:match("^sd> ", pos) or out:match("^>> ", pos)
        if prompt then
            pos = pos + #prompt
            k = k + 1
            if k > #lines then
                res[#res + 1] = out:sub(pos)
                break
            end
            res[#res + 1] = (prompt .. lines[k]):gsub("%s+$", "") .. "\n"
        elseif pos > #out then
            break
        else
            local e = out:find("\n", pos, true) or #out
            res[#res + 1] = out:sub(pos, e)
            pos = e + 1
        end
    end
    if not ok then res[#res + 1] = ("(ended: %s %s)\n"):format(why, code) end
    return table.concat(res)
end

local NUMBER = "%-?%d+%.%d+e?[%-+]?%d*"
local function close(a, b)
    local x, y = tonumber(a), tonumber(b)
    if a == b or not x or not y then return a == b end
    local function place(s) return 10.0 ^ -(#s:match "%.(%d+)" - (tonumber(s:match "e(.*)") or 0)) end
    return math.abs(x - y) <= math.max(1e-6 * math.abs(x), 1.001 * math.max(place(a), place(b)))
end
local function same(want, got)
    local numbers, i = {}, 0
    local function shape(text, visit)
        return (text:gsub(NUMBER, visit):gsub("[ \t]+", " "))
    end
    local a = shape(want, function(n) numbers[#numbers + 1] = n; return "#" end)
    local ok = true
    local b = shape(got, function(n)
        i = i + 1
        ok = ok and numbers[i] ~= nil and close(numbers[i], n)
        return "#"
    end)
    return ok and a == b and i == #numbers
end
assert(same("a 1.50  x 2", "a 1.51 x 2") and same("2.2951305670624", "2.2951305735472"))
assert(not same("1.50", "1.52") and not same("2", "3") and not same("1.5 a", "1.5 b"))
assert(not same("2.2951305670624", "2.2951405735472") and not same("1.0", "1.0 1.0"))
assert(same("1.5e-10", "1.6e-10") and not same("1.5e-10", "1.8e-10"))

local pass, fail = 0, 0
for _, path in ipairs(files) do
    local text = read(path)
    local head, lines = inputs(text)
    local got = table.concat(head, "\n") .. (#head > 0 and "\n" or "") .. replay(lines)
    if same(text, got) and not (accept and got ~= text) then
        pass = pass + 1
    elseif accept then
        local f = assert(io.open(path, "wb"))
        f:write(got)
        f:close()
        print("accepted " .. path)
        pass = pass + 1
    else
        fail = fail + 1
        print("differs: " .. path .. " (golden -, now +)")
        local tmp = os.tmpname()
        local f = assert(io.open(tmp, "wb"))
        f:write(got)
        f:close()
        local p = io.popen(("diff -u %s %s | tail -n +3"):format(path, tmp))
        io.write(p:read "a")
        p:close()
        os.remove(tmp)
    end
end
print(("%d passed, %d failed"):format(pass, fail))
os.exit(fail == 0 and 0 or 1)
