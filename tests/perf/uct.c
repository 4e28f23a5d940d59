/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/*
 * Short operations of UCT between two interfaces of strait's in one process, as UCP calls them: for counting instructions.
 *
 *   uct PATTERN ROUNDS [BYTES]
 *     PATTERN  am     uct_ep_am_short, then the receiver's progress
 *              bcopy  uct_ep_am_bcopy, then the receiver's progress
 *              put    uct_ep_put_short
 *              get    uct_ep_get_bcopy
 *
 * Prints nothing. Under valgrind --tool=callgrind --toggle-collect=measured the instructions of ROUNDS are counted, after a
 * tenth as many that are not (ci/check/instructions).
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uct/api/uct.h>

enum { AM_ID = 3 };

static uct_iface_h iface[2];
static uct_ep_h ep;
static char memory[1 << 12], out[1 << 12];
static size_t bytes = 8;
static unsigned long arrived;

static void check(ucs_status_t status, const char *what)
{
	if (status != UCS_OK) {
		fprintf(stderr, "%s: %s\n", what, ucs_status_string(status));
		exit(1);
	}
}

static ucs_status_t arrive(void *arg, void *data, size_t length, unsigned flags)
{
	(void)arg, (void)data, (void)length, (void)flags;
	arrived++;
	return UCS_OK;
}

static size_t pack(void *dest, void *arg)
{
	(void)arg;
	memcpy(dest, out, bytes);
	return bytes;
}

static void unpack(void *arg, const void *data, size_t length)
{
	(void)arg;
	memcpy(out, data, length);
}

static void progress(void)
{
	uct_iface_progress(iface[0]);
	uct_iface_progress(iface[1]);
}

static uct_iface_h open_iface(uct_md_h md, uct_worker_h worker)
{
	uct_iface_params_t params = {
		.field_mask = UCT_IFACE_PARAM_FIELD_OPEN_MODE | UCT_IFACE_PARAM_FIELD_DEVICE,
		.open_mode = UCT_IFACE_OPEN_MODE_DEVICE,
		.mode.device = { .tl_name = "strait", .dev_name = "host" },
	};
	uct_iface_config_t *config;
	uct_iface_h made;

	check(uct_md_iface_config_read(md, "strait", NULL, NULL, &config), "iface config");
	check(uct_iface_open(md, worker, &params, config, &made), "iface");
	uct_config_release(config);
	uct_iface_progress_enable(made, UCT_PROGRESS_SEND | UCT_PROGRESS_RECV);
	return made;
}

static void connect_ep(void)
{
	static char device[256], address[256];
	uct_ep_params_t params = {
		.field_mask = UCT_EP_PARAM_FIELD_IFACE | UCT_EP_PARAM_FIELD_DEV_ADDR | UCT_EP_PARAM_FIELD_IFACE_ADDR,
		.iface = iface[0],
		.dev_addr = (void *)device,
		.iface_addr = (void *)address,
	};

	check(uct_iface_get_device_address(iface[1], (void *)device), "device address");
	check(uct_iface_get_address(iface[1], (void *)address), "iface address");
	check(uct_ep_create(&params, &ep), "ep");
}

static uct_component_h find_component(void)
{
	uct_component_h *components, found = NULL;
	unsigned count;

	check(uct_query_components(&components, &count), "components");
	for (unsigned i = 0; i < count; i++) {
		uct_component_attr_t attr = { .field_mask = UCT_COMPONENT_ATTR_FIELD_NAME };

		check(uct_component_query(components[i], &attr), "component");
		if (strcmp(attr.name, "strait") == 0)
			found = components[i];
	}
	if (found == NULL) {
		fprintf(stderr, "UCX has no component strait\n");
		exit(1);
	}
	return found;
}

static void message(int short_one)
{
	unsigned long before = arrived;
	ucs_status_t status;

	if (short_one) {
		while ((status = uct_ep_am_short(ep, AM_ID, 7, out, bytes)) == UCS_ERR_NO_RESOURCE)
			progress();
		check(status, "am_short");
	} else {
		ssize_t length;

		while ((length = uct_ep_am_bcopy(ep, AM_ID, pack, NULL, 0)) == UCS_ERR_NO_RESOURCE)
			progress();
		check(length < 0 ? length : UCS_OK, "am_bcopy");
	}
	while (arrived == before)
		uct_iface_progress(iface[1]);
}

static void put(uct_rkey_t key)
{
	ucs_status_t status;

	while ((status = uct_ep_put_short(ep, out, bytes, (uintptr_t)memory, key)) == UCS_ERR_NO_RESOURCE)
		progress();
	check(status, "put_short");
}

static void get(uct_rkey_t key)
{
	uct_completion_t done = { .count = 1 };
	ucs_status_t status;

	while ((status = uct_ep_get_bcopy(ep, unpack, NULL, bytes, (uintptr_t)memory, key, &done)) == UCS_ERR_NO_RESOURCE)
		progress();
	while (status == UCS_INPROGRESS && done.count > 0)
		progress();
	check(status == UCS_INPROGRESS ? done.status : status, "get_bcopy");
}

static void operation(const char *pattern, uct_rkey_t key)
{
	if (!strcmp(pattern, "am") || !strcmp(pattern, "bcopy"))
		message(pattern[0] == 'a');
	else if (!strcmp(pattern, "put"))
		put(key);
	else
		get(key);
}

/* By a name of its own, for --toggle-collect. */
__attribute__((noinline)) static void measured(const char *pattern, long rounds, uct_rkey_t key)
{
	for (long i = 0; i < rounds; i++)
		operation(pattern, key);
}

int main(int argc, char **argv)
{
	if (argc < 3) {
		fprintf(stderr, "usage: %s am|bcopy|put|get ROUNDS [BYTES]\n", argv[0]);
		return 2;
	}
	const char *pattern = argv[1];
	long rounds = atol(argv[2]);
	uct_component_h component = find_component();
	ucs_async_context_t *async;
	uct_md_config_t *config;
	uct_rkey_bundle_t key;
	uct_worker_h worker;
	uct_mem_h handle;
	uct_md_h md;
	char packed[512];

	bytes = argc > 3 ? strtoul(argv[3], NULL, 0) : bytes;
	if (bytes > sizeof(out))
		return 2;
	check(ucs_async_context_create(UCS_ASYNC_MODE_THREAD_SPINLOCK, &async), "async");
	check(uct_worker_create(async, UCS_THREAD_MODE_SINGLE, &worker), "worker");
	check(uct_md_config_read(component, NULL, NULL, &config), "md config");
	check(uct_md_open(component, "strait", config, &md), "md");
	uct_config_release(config);
	for (int i = 0; i < 2; i++)
		iface[i] = open_iface(md, worker);
	check(uct_iface_set_am_handler(iface[1], AM_ID, arrive, NULL, 0), "handler");
	connect_ep();
	check(uct_md_mem_reg(md, memory, sizeof(memory), UCT_MD_MEM_ACCESS_ALL, &handle), "reg");
	check(uct_md_mkey_pack(md, handle, packed), "pack");
	check(uct_rkey_unpack(component, packed, &key), "unpack");
	message(1);
	for (long i = 0; i < rounds / 10; i++)
		operation(pattern, key.rkey);
	measured(pattern, rounds, key.rkey);
	return 0;
}
