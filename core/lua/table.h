/* lua/table.h: what the two files of table bindings share. */
#ifndef SD_LUA_TABLE_H
#define SD_LUA_TABLE_H

#include "lua/bind.h"

/* Column by name; an error that suggests the nearest. */
int sd_lua_table_col(lua_State *L, const sd_table *t, const char *name);
void sd_lua_table_cell(lua_State *L, const sd_table *t, int row, int col); /* pushed */
/* Methods that compute (table_ops.c), into the methods table on top; functions, into sd on top. */
void sd_lua_table_ops(lua_State *L);
void sd_lua_table_functions(lua_State *L);
/* w[mask], w.name = value */
int sd_lua_table_pick(lua_State *L);
int sd_lua_table_newindex(lua_State *L); /* upvalue 1: the methods */

#endif
