/* embed NAME FILE OUT - write FILE as C: struct report_asset NAME. Runs when the program is
 * built. */
#include <stdio.h>
#include <string.h>

/* The bytes go into a script or style element of a page as they are: what ends it may not be in
 * them. */
static const char *const ends[] = { "</script", "</style" };

static int failed(const char *why, const char *path)
{
    fprintf(stderr, "embed: %s: %s\n", path, why);
    return 1;
}

int main(int argc, char **argv)
{
    char last[16] = "";
    FILE *in, *out;
    size_t n = 0;
    int c;

    if (argc != 4)
        return failed("want NAME FILE OUT", "arguments");
    in = fopen(argv[2], "rb");
    if (!in)
        return failed("cannot be read", argv[2]);
    out = fopen(argv[3], "w");
    if (!out)
        return failed("cannot be written", argv[3]);
    fprintf(out, "#include \"src/rank/report_asset.h\"\n\nstatic const unsigned char bytes[] = {");
    for (; (c = getc(in)) != EOF; n++) {
        fprintf(out, "%s%d,", n % 24 ? "" : "\n", c);
        memmove(last, last + 1, sizeof(last) - 1);
        last[sizeof(last) - 2] = (char)c;
        for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
            size_t have = sizeof(last) - 1, want = strlen(ends[i]);

            if (memcmp(last + have - want, ends[i], want) == 0)
                return failed("holds the end of an element", argv[2]);
        }
    }
    /* An array has at least one element. */
    fprintf(out, "\n0 };\n\nconst struct report_asset %s = { bytes, sizeof(bytes) - 1 };\n",
            argv[1]);
    if (ferror(in))
        return failed("cannot be read", argv[2]);
    return fclose(out) == 0 ? 0 : failed("cannot be written", argv[3]);
}
