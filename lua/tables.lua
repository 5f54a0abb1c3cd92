-- tables.lua: methods of result tables that are operations of their own.
local sd, internal = ...
local methods = internal.methods "result table"

local function summary(w, options)
    return sd.summary(w, options or {})
end

methods.summary = summary
internal.doc {
    name = "table:summary", fn = summary, kind = "method", signature = "w:summary({tau=3})",
    summary = "One row a layer: medians over heads and the share of minimal-rank layers.",
    example = "assert(#p:summary() > 0)", options = "tau=",
}

-- The ranks alone: what one looks at first.
local function rank(w, options)
    local s = summary(w, options)
    local keep = {}
    for _, c in ipairs(s.columns) do
        if c == "layer" or c:match "^pr" or c == "phi" or c:match "^minimal" then
            keep[#keep + 1] = c
        end
    end
    return s:select(keep)
end

methods.rank = rank
internal.doc {
    name = "table:rank", fn = rank, kind = "method", signature = "w:rank({tau=3})",
    summary = "The rank columns of w:summary(): pr per layer beside its controls.",
    example = "assert(p:rank().columns[1] == 'layer')", options = "tau=",
}
