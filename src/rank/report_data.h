/* report_data - the numbers that a page's charts are drawn from, as one JSON object. */
#ifndef TANDEM_RANK_REPORT_DATA_H
#define TANDEM_RANK_REPORT_DATA_H

#include "src/rank/report_view.h"

struct json_writer;

void report_data(const struct report_view *v, struct json_writer *w);

#endif
