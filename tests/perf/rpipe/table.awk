# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
# Lines "LIBRARY FORM BYTES FIGURE" of several turns: medians, and how many times as long as rwrite or rread MPI's best forms take.

# The median of a list of numbers with blanks between.
function median(list,    v, n, i, j, t) {
    n = split(list, v, " ")
    for (i = 2; i <= n; i++)
        for (j = i; j > 1 && v[j - 1] + 0 > v[j] + 0; j--) { t = v[j]; v[j] = v[j - 1]; v[j - 1] = t }
    return n % 2 ? v[(n + 1) / 2] : (v[n / 2] + v[n / 2 + 1]) / 2
}

function figure(x) { return x == "" ? "-" : sprintf(x < 10 ? "%.3f" : "%.1f", x) }
function ratio(a, b) { return a == "" || b == "" || b + 0 == 0 ? "-" : sprintf("%.2f", a / b) }

# The least of a row among the columns whose form begins so, without those of strait.
function best(row, begin,    c, least) {
    least = ""
    for (c = 1; c <= columns; c++)
        if (column[c] !~ /^strait/ && index(form_of[c], begin) == 1 && ((row, c) in med) &&
            (least == "" || med[row, c] < least)) least = med[row, c]
    return least
}

{
    # strait random-rwrite.3.64K 8: the row is what comes behind the first dot, with the bytes.
    dot = index($2, ".")
    form = dot ? substr($2, 1, dot - 1) : $2
    kind = dot ? substr($2, dot + 1) : ""
    table = form ~ /^heap|^fragmentation/ ? "heap" : form ~ /^random/ ? "random" : "pairs"
    key = table SUBSEP $1 " " form
    if (!(key in at)) {
        at[key] = ++columns
        column[columns] = $1 " " form; form_of[columns] = form; of[columns] = table
    }
    row = table SUBSEP kind SUBSEP $3
    if (!(row in seen)) { seen[row] = 1; rows[table, ++count[table]] = row; kind_of[row] = kind; bytes[row] = $3 }
    values[row, at[key]] = values[row, at[key]] " " $4
}

END {
    for (k in values) med[k] = median(values[k])
    print "microseconds, medians; " ranks " ranks"
    print "\npairs of ranks, one way; get and rread: a call\n"
    pairs("put-", "rwrite", "put")
    pairs("pull-", "pull", "pull")
    pairs("get-", "rread", "get")
    print "\nrank 0 to random peers, for a message\n"
    randoms()
    print "\nrmalloc and rfree together\n"
    for (n = 1; n <= count["heap"]; n++)
        for (c = 1; c <= columns; c++)
            if (((row = rows["heap", n]), c) in med)
                printf "%-28s %-8s %s\n", form_of[c], kind_of[row], sprintf("%.4f", med[row, c])
}

function pairs(begin, own, name,    n, c, row, mine) {
    mine = at["pairs" SUBSEP "strait " own]
    printf "%8s", "bytes"
    for (c = 1; c <= columns; c++) if (wanted(c, begin, own)) printf " %24s", column[c]
    printf " %14s", "best " name "/" own
    if (begin == "put-") printf " %14s %14s", "best put/flag", "rwrite/flag"
    printf begin == "put-" ? " %14s\n" : "\n", "send/" own
    for (n = 1; n <= count["pairs"]; n++) {
        row = rows["pairs", n]
        printf "%8d", bytes[row]
        for (c = 1; c <= columns; c++) if (wanted(c, begin, own)) printf " %24s", figure(med[row, c])
        printf " %14s", ratio(best(row, begin), med[row, mine])
        if (begin == "put-") {
            floor = med[row, at["pairs" SUBSEP "memory flag"]]
            printf " %14s %14s", ratio(best(row, begin), floor), ratio(med[row, mine], floor)
            printf " %14s", ratio(best(row, "send"), med[row, mine])
        }
        print ""
    }
    print ""
}

function wanted(c, begin, own) {
    return of[c] == "pairs" && (index(form_of[c], begin) == 1 || form_of[c] == own || (begin == "put-" && form_of[c] ~ /^send$|^flag/))
}

# Heaps are columns, beside MPI, which has none.
function randoms(    n, c, row, parts, peers, line, lines, i) {
    for (n = 1; n <= count["random"]; n++) {
        row = rows["random", n]
        split(kind_of[row], parts, ".")
        line = parts[1] SUBSEP bytes[row]
        if (!(line in known)) { known[line] = ++lines; peers_of[lines] = parts[1]; bytes_of[lines] = bytes[row] }
        for (c = 1; c <= columns; c++) {
            if (!((row, c) in values)) continue
            name = column[c] (parts[2] == "" ? "" : " " parts[2])
            sub(/random-/, "", name)
            if (!(name in place)) { place[name] = ++names; called[names] = name }
            cell[known[line], place[name]] = med[row, c]
        }
    }
    printf "%8s%8s", "peers", "bytes"
    for (i = 1; i <= names; i++) printf " %22s", called[i]
    print ""
    for (n = 1; n <= lines; n++) {
        printf "%8d%8d", peers_of[n], bytes_of[n]
        for (i = 1; i <= names; i++) printf " %22s", figure(cell[n, i])
        print ""
    }
}
