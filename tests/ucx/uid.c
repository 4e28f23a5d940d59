/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
 *
 * Two processes of one user exchange messages.  A third one, of another user, gets the address of one of
 * them: UCX has to refuse an endpoint to it.  Then it tries again with the address forged so as to look
 * like one of its own user's: that endpoint has to fail, what was sent with it has to end, and none of it
 * may arrive.  The two then go on.
 *
 * Each is tried with root approached by the user `nobody`, and the other way round; and with two users each in a user
 * namespace without a mapping, where both are seen as `nobody`.  The last line of what went well is "ok NAME".
 * The exit status is 77 where this process cannot become `nobody`, or there are no user namespaces.
 */
#include "pair.h"
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <uct/api/uct.h>

#define NOBODY 65534
#define INTRUDED 99 /* the intruder's tag */

static int to_intruder;
static int unmapped;
static uint64_t *home; /* the owner's user namespace */

static uint64_t user_namespace(void) {
    struct stat st;
    if (stat("/proc/self/ns/user", &st) != 0) die("/proc/self/ns/user");
    return st.st_ino;
}

static int become(uid_t uid) {
    if (setresgid(uid, uid, uid) != 0 || setresuid(uid, uid, uid) != 0) return 1;
    return unmapped && unshare(CLONE_NEWUSER) != 0;
}

/* In a device address the number of the network namespace stands before that of the user, and before it a
 * number that the user namespace is part of if that has no mapping. */
static void forge(unsigned char *address, size_t length, uint32_t from, uint32_t to) {
    struct stat net;
    uint32_t place[2];
    uint64_t before;
    unsigned char *at;
    if (stat("/proc/self/ns/net", &net) != 0) die("/proc/self/ns/net");
    place[0] = (uint32_t)net.st_ino;
    place[1] = from;
    at = memmem(address, length, place, sizeof(place));
    if (at == NULL || at - address < 8) die("no user in the address");
    if (unmapped) {
        memcpy(&before, at - 8, 8);
        before ^= *home ^ user_namespace();
        memcpy(at - 8, &before, 8);
    }
    memcpy(at + sizeof(*place), &to, sizeof(to));
}

static void intrude(uid_t own, uid_t theirs) {
    ucp_request_param_t p = {0};
    ucs_status_t status;
    size_t length;
    void *address;
    me = 2;
    error_mode = 1;
    alarm(150);
    if (become(own)) die("cannot become %u", own);
    open_worker();
    address = receive_address(&length);
    status = create_ep(address);
    if (status != UCS_ERR_UNREACHABLE) die("an endpoint to another user's: %s", ucs_status_string(status));
    if (unmapped) own = theirs = NOBODY;
    forge(address, length, theirs, own);
    for (int attempt = 0; attempt < 2; attempt++) {
        char text[] = "let me in";
        double limit = now() + 60;
        ucs_status_ptr_t sent;
        ep_error = UCS_OK;
        check(create_ep(address), "an endpoint by a forged address");
        sent = ucp_tag_send_nbx(ep, text, sizeof(text), INTRUDED, &p);
        while (!ep_error) {
            step();
            if (now() > limit) die("no error after 60 s");
        }
        status = finish(sent, "a message to another user's");
        if (attempt == 0) printf("the endpoint: %s; the message: %s\n", ucs_status_string(ep_error), ucs_status_string(status));
        p.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
        p.flags = UCP_EP_CLOSE_FLAG_FORCE;
        finish(ucp_ep_close_nbx(ep, &p), "close");
        p.op_attr_mask = 0;
    }
    free(address);
    meet();
    ucp_worker_destroy(worker);
    ucp_cleanup(context);
    fflush(stdout);
    _exit(0);
}

static void exchange(void) {
    static const size_t sizes[] = {8, 5000, 1 << 20};
    ucp_request_param_t p = {0};
    unsigned char *out = malloc(1 << 20), *in = malloc(1 << 20);
    for (size_t k = 0; k < LENGTH(sizes); k++) {
        ucs_status_ptr_t r;
        fill(out, sizes[k], k + me);
        memset(in, 0, sizes[k]);
        r = ucp_tag_recv_nbx(worker, in, sizes[k], k, ~0ull, &p);
        check(finish(ucp_tag_send_nbx(ep, out, sizes[k], k, &p), "send"), "send");
        check(finish(r, "receive"), "receive");
        expect(in, sizes[k], k + !me, "a message of the same user");
    }
    free(out);
    free(in);
}

static void body(void) {
    ucp_tag_recv_info_t info;
    exchange();
    if (me == 0) {
        int other = out_of_band;
        out_of_band = to_intruder;
        send_address();
        meet();
        out_of_band = other;
        for (int i = 0; i < 1000; i++) ucp_worker_progress(worker);
        if (ucp_tag_probe_nb(worker, INTRUDED, ~0ull, 0, &info) != NULL) die("another user's message arrived");
    }
    exchange();
}

/* In a process of its own, which does not come back from being that user. */
static int approach(const char *name, uid_t own, uid_t intruder) {
    int fds[2], status;
    pid_t child;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0) return 1;
    child = fork();
    if (child == 0) {
        close(fds[0]);
        out_of_band = fds[1];
        intrude(intruder, own);
    }
    close(fds[1]);
    to_intruder = fds[0];
    if (become(own)) {
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
        return 77;
    }
    *home = user_namespace();
    status = run(name, body, 0);
    close(fds[0]);
    if (status != 0) kill(child, SIGKILL);
    return waitpid(child, &status, 0) != child || status != 0;
}

int main(void) {
    static const uid_t users[][2] = {{0, NOBODY}, {NOBODY, 0}, {1001, 1002}};
    static const char *const names[] = {"root approached", "nobody approached", "one without a mapping approached"};
    uct_component_h *components;
    unsigned count;
    int bad = 0, status;
    setvbuf(stdout, NULL, _IOLBF, 0);
    /* Loads UCX's modules, and Strait, while this process may read their directories. */
    check(uct_query_components(&components, &count), "uct_query_components");
    uct_release_component_list(components);
    home = mmap(NULL, sizeof(*home), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (home == MAP_FAILED) die("mmap");
    for (int t = 0; t < 3; t++) {
        unmapped = t == 2;
        pid_t child = fork();
        if (child == 0) {
            status = approach(names[t], users[t][0], users[t][1]);
            fflush(stdout);
            _exit(status);
        }
        if (waitpid(child, &status, 0) != child || !WIFEXITED(status)) return 1;
        if (WEXITSTATUS(status) == 77) return 77;
        bad |= WEXITSTATUS(status);
    }
    return bad;
}
