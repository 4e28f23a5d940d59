/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* CUDA's driver, loaded at run time: what gpu.cc calls of it. */
#ifndef STRAIT_TEST_XPU_DRIVER_H
#define STRAIT_TEST_XPU_DRIVER_H

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

typedef uint64_t dptr;

/* A call of the driver; what it refuses is an exception that names it. */
template <class... A> void cu(const char *name, A... args)
{
	static void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
	if (!driver)
		throw std::runtime_error(std::string("no CUDA driver: ") + dlerror());
	auto f = (int (*)(A...))dlsym(driver, name);
	if (!f)
		throw std::runtime_error(std::string("the driver has no ") + name);
	const int code = f(args...);
	if (code == 0)
		return;
	const char *word = nullptr;
	if (auto name_of = (int (*)(int, const char **))dlsym(driver, "cuGetErrorName"))
		name_of(code, &word);
	throw std::runtime_error(std::string(name) + ": " + (word ? word : "?") + " (" + std::to_string(code) + ")");
}

/* Whether a stream has come to its end; throws if a kernel failed. */
inline bool stream_ended(void *stream)
{
	static void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
	static auto query = (int (*)(void *))dlsym(driver, "cuStreamQuery");
	const int code = query(stream);
	if (code == 600) /* CUDA_ERROR_NOT_READY */
		return false;
	if (code)
		throw std::runtime_error("a kernel failed: " + std::to_string(code));
	return true;
}

#endif
