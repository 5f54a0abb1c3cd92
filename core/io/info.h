/* info.h: what a checkpoint holds, and how two checkpoints differ, as tables. */
#ifndef SD_IO_INFO_H
#define SD_IO_INFO_H

#include "base/run.h"
#include "base/table.h"

/* What the file or folder at `path` holds, from its headers alone. Table kind "info", one row a
 * tensor in the file's order: name, dtype, shape ("(4, 256)"), params (elements), bytes, shard
 * (file name). Meta: path, format, tensors, params (elements of floating and quantised tensors),
 * buffers (elements of integer and bool tensors), bytes, files, and the file's own metadata as
 * "metadata.<key>" (arrays as "array of n"). `hash` adds sha256 of the files' bytes, the only part
 * that reads the weights. */
sd_status sd_info(const char *path, bool hash, const sd_run *SD_NULLABLE run, SD_OWN sd_table **out,
                  sd_err *err);

/* Compares two checkpoints tensor by tensor, by name. Table kind "diff", rows in a's order, then
 * those only in b: name; status:
 *   "same"     same type, shape and bytes
 *   "retyped"  another type, every value equal
 *   "changed"  values, bytes or the shape differ
 *   "only a", "only b";
 * max_abs max|b − a| and rel_norm ‖b − a‖/‖a‖ (f64; where both have the shape; a NaN on one side
 * gives NaN; inf when a is all zero), dtype_a dtype_b shape_a shape_b. Meta: path_a path_b, the
 * counts same retyped changed only_a only_b, max_abs over all, and identical (1 when every row is
 * "same"). Memory use does not grow with the tensors; polls cancellation. */
sd_status sd_diff(const char *path_a, const char *path_b, const sd_run *SD_NULLABLE run,
                  SD_OWN sd_table **out, sd_err *err);

#endif
