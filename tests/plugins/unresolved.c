/* Calls a function nobody has (built without -z defs). */
#include "gallery.h"
double sd_nobody_has_this(double x);
static int run(const sd_host *host, sd_call *call) {
    return host->return_num(call, sd_nobody_has_this(1));
}
static const sd_op_desc ops[] = {OP("unresolved_op", SD_ARG_NUM, run)};
SD_PLUGIN_EXPORT const sd_plugin_desc sd_plugin = {GOOD("unresolved", ops)};
