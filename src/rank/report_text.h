/* report_text - a view as tables on a terminal. */
#ifndef TANDEM_RANK_REPORT_TEXT_H
#define TANDEM_RANK_REPORT_TEXT_H

#include "src/rank/report_view.h"

#include <stdio.h>

void report_text(const struct report_view *v, FILE *f);

#endif
