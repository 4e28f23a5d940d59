/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* Processes of two hosts, which are network namespaces of one machine. Of tests/xpu/streams.cc.
 *
 *     STREAMS_HOSTS="one two"    the namespaces, below /run/netns: one for each process, which has its own number of the boot, so that
 *                                the library takes them for hosts
 *     STREAMS_CUT=command        what cuts the cable, after which `agent-silent` expects each wait to end */

#include <fcntl.h>
#include <sys/mount.h>

/* The files that a process reads the boot's number from. */
static const char boot_path[] = "/proc/sys/kernel/random/boot_id";

static bool on_hosts() { return getenv("STREAMS_HOSTS") != nullptr; }

/* Before the process has a second thread. */
static void enter_host(bool leads)
{
	if (!on_hosts())
		return;
	std::string name = getenv("STREAMS_HOSTS");
	const size_t space = name.find(' ');
	CHECK(space != std::string::npos);
	name = leads ? name.substr(0, space) : name.substr(space + 1);
	const int fd = open(("/run/netns/" + name).c_str(), O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0 && setns(fd, CLONE_NEWNET) == 0);
	close(fd);
	char boot[] = "/tmp/strait-boot-XXXXXX";
	const int file = mkstemp(boot);
	CHECK(file >= 0 && dprintf(file, "%08x-0000-4000-8000-000000000000\n", leads ? 1 : 2) > 0);
	close(file);
	CHECK(unshare(CLONE_NEWNS) == 0 && mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0);
	/* That of the process that has started this one. */
	umount2(boot_path, MNT_DETACH);
	CHECK(mount(boot, boot_path, nullptr, MS_BIND, nullptr) == 0);
	unlink(boot);
}

/* The peer's host answers no more while a graph waits for a message, and another stream for the end of a put: `timeout_ms` of the program's
 * ends them, or the connection, which notices the silence after half a minute. Both sides have sent then. */
static void silent(bool leads, unsigned timeout_ms)
{
	const int expected = timeout_ms < 30000 ? ETIMEDOUT : ECONNRESET;
	gpu g;
	strait_stream_list *l = nullptr;
	void *other = nullptr;
	uint32_t region = 9;
	g.open();
	cu("cuStreamCreate", &other, 1u);
	strait_stream *s = open_endpoint(0, timeout_ms * 1000000ULL);
	OK(strait_stream_register(s, (void *)(g.in + 2 * size), size, &region));
	meet(s);
	g.make(0);
	OK(strait_stream_send(s, g.stream, g.at(g.out, 0), size));
	OK(strait_stream_receive(s, g.stream, g.at(g.in, 0), size));
	g.end_of_stream();
	CHECK(g.words(g.in, size)[threads - 1] == threads - 1);
	OK(strait_stream_list_open(s, 1, &l));
	OK(strait_stream_list_receive(l, g.at(g.in, 1), size));
	void *exec = of_nodes(l);
	cu("cuGraphLaunch", exec, g.stream);
	together();
	CHECK(!stream_ended(g.stream) && failed(s).code == 0);
	together();
	if (leads)
		CHECK(system(getenv("STREAMS_CUT")) == 0);
	together();
	const double begin = now();
	const strait_stream_transfer put = transfer_of(g.at(g.out, 0), size, region, 0, 3);
	OK(strait_stream_send(s, other, g.at(g.out, 0), size));
	OK(strait_stream_put(s, other, &put));
	g.end_of_stream();
	const double took = now() - begin;
	while (!stream_ended(other) && now() - begin < limit_s)
		usleep(1000);
	CHECK(stream_ended(other));
	const strait_stream_failure f = failed(s);
	CHECK(f.code == expected);
	CHECK(g.untouched(g.in + size, 2 * size));
	/* What is queued later passes, and moves nothing. */
	cu("cuGraphLaunch", exec, g.stream);
	g.end_of_stream();
	CHECK(g.untouched(g.in + size, 2 * size));
	REFUSED(f.code, strait_stream_send(s, g.stream, g.at(g.out, 0), size));
	cu("cuGraphExecDestroy", exec);
	OK(strait_stream_list_close(l));
	OK(strait_stream_close(s));
	together();
	if (leads)
		printf("ok streams agent-silent: %s after %.1f s\n", f.code == ETIMEDOUT ? "the time limit" : "the connection has ended", took);
}
