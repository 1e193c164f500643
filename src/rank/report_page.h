/* report_page - a view as one HTML file that needs nothing else: no network, no other file.
 *
 * Charts are drawn by Chart.js (MIT licence), which is put into the program when it is built, where
 * it is installed; without it the page has the tables alone. Nothing of a log is trusted to be
 * text: all of it is escaped, and the page's policy forbids everything that is not in the file.
 */
#ifndef TANDEM_RANK_REPORT_PAGE_H
#define TANDEM_RANK_REPORT_PAGE_H

#include "src/rank/report_view.h"

#include <stdio.h>

/* report_page_write - the whole page to f.
 * errors   -ENOMEM, logged; those of f are the caller's to see */
int report_page_write(const struct report_view *v, FILE *f);

/* report_page_charts - whether this build has the charts' library. */
bool report_page_charts(void);

/* html_put - text as text, whatever is in it, also inside an attribute's quotes. */
void html_put(FILE *f, const char *text);

#endif
