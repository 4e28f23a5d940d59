//! CUDA's memory, over the stand-in for its driver. One process, so one test at a time.

mod apart;
mod kernel;
mod processes;
mod to_host;

use std::sync::{Mutex, MutexGuard, PoisonError};

use cuda_stand_in::driver::Driver;
use hmem::cuda::{self, Error, Sort};
use hmem::path::{Path, any_device, find, no_device};
use hmem::pending::{Part, PendingCopy};
use hmem::registry::AdapterWrites;
use hmem::share::{Export, HandleType, Opened};
use hmem::{AtomicOp, Datatype, Kind, Span, apply, classify, copy, read, registry, write};

fn alone() -> (MutexGuard<'static, ()>, Driver) {
    static ONE: Mutex<()> = Mutex::new(());
    let guard = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let driver = Driver::start();
    cuda::find_driver();
    (guard, driver)
}

fn span(addr: usize, len: usize) -> Span {
    // SAFETY: the stand-in checks what is copied there, and these tests free nothing early unless
    // to see it checked.
    unsafe { Span::new(addr, len, classify(addr, len)) }
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251 + seed) as u8).collect()
}

#[test]
fn every_sort_of_memory_is_distinguished_from_the_others() {
    let (_alone, cu) = alone();
    let (plain, pool, managed, host, mapped) =
        (cu.alloc(100), cu.alloc_async(100), cu.alloc_managed(100), cu.alloc_host(100), cu.map(2));
    for (at, sort, kind) in [
        (plain, Sort::Plain, Kind::Cuda),
        (pool, Sort::Pool, Kind::Cuda),
        (managed, Sort::Managed, Kind::Cuda),
        (host, Sort::Host, Kind::System),
        (mapped, Sort::Mapped, Kind::Cuda),
    ] {
        assert_eq!(classify(at, 100), kind, "{sort:?}");
        assert_eq!(classify(at + 99, 1), kind, "{sort:?}");
        let info = cuda::info(at + 50).unwrap();
        assert_eq!((info.sort, info.base), (sort, at as u64));
        let moves = matches!(sort, Sort::Managed | Sort::Host);
        let device = registry::of(Kind::Cuda).to_adapter(at + 50, 50);
        assert_eq!(device, (!moves).then_some((0, 0)), "{sort:?}");
    }
    let (heap, stack, big) = (Box::new(5u8), 5u8, vec![0u8; 64 << 20]);
    for at in [(&raw const *heap).addr(), (&raw const stack).addr(), big.as_ptr().addr()] {
        assert_eq!(classify(at, 1), Kind::System);
        assert_eq!(cuda::info(at), None);
    }
    assert_eq!(classify(0, 0), Kind::System);
    for at in [plain, pool, managed, host] {
        cu.free(at);
        assert_eq!(classify(at, 1), Kind::System, "freed");
    }
    cu.unmap(mapped, 2);
}

#[test]
fn the_heap_and_the_stack_are_known_without_asking_the_driver() {
    let (_alone, cu) = alone();
    // A block of the main heap: small, and of the main arena, which tests' threads do not use.
    // SAFETY: asks where the heap ends.
    let end = unsafe { libc::sbrk(0) }.addr();
    let before = cu.calls(c"cuPointerGetAttributes");
    assert_eq!(classify(end - 64, 8), Kind::System);
    assert_eq!(cu.calls(c"cuPointerGetAttributes"), before);
    let other = vec![0u8; 8 << 20];
    assert_eq!(classify(other.as_ptr().addr(), 8), Kind::System);
    assert_eq!(cu.calls(c"cuPointerGetAttributes"), before + 1, "anything may be mapped there later");
}

#[test]
fn copies_go_every_way_from_any_thread() {
    let (_alone, cu) = alone();
    let (a, b) = (cu.alloc(5000), cu.map(2));
    let seam = (2 << 20) - 1000;
    let text = pattern(3000, 1);
    let run = || {
        assert_eq!(write(&[span(a, 5000)], 7, &text), 3000);
        // Across two mappings, which no single allocation holds.
        assert_eq!(copy(&[span(b, 4 << 20)], seam, &[span(a, 5000)], 7, 3000), 3000);
        let mut back = vec![0; 3000];
        assert_eq!(read(&[span(b, 4 << 20)], seam, &mut back), 3000);
        assert!(back == text);
    };
    run();
    cu.leave();
    run();
    std::thread::scope(|s| s.spawn(run).join().unwrap());
    cu.enter(1);
    run();
    let before = cu.calls(c"cuMemcpyAsync");
    let sum = apply(&[span(a, 8)], AtomicOp::AtomicWrite, Datatype::Uint64, &5u64.to_ne_bytes(), &[], None);
    assert_eq!(cu.calls(c"cuMemcpyAsync") - before, 1, "what was there is read, though nothing fetches it");
    assert_eq!(sum, Ok(()));
    let sum = apply(&[span(a, 8)], AtomicOp::Sum, Datatype::Uint64, &37u64.to_ne_bytes(), &[], None);
    assert_eq!(sum, Ok(()));
    assert_eq!(cu.read(a, 8), 42u64.to_ne_bytes());
    cu.free(a);
    cu.unmap(b, 2);
}

#[test]
fn a_copy_that_fails_is_not_taken_for_done() {
    let (_alone, cu) = alone();
    let a = cu.alloc(100);
    let (dev, host) = (span(a, 100), Span::leak(100));
    cu.fail(c"cuMemcpyAsync", 1, 700);
    assert_eq!(copy(&[dev], 0, &[host], 0, 100), 0);
    assert_eq!(copy(&[dev], 0, &[host], 0, 100), 100);
    cu.fail(c"cuMemcpyAsync", 2, 700);
    assert_eq!(read(&[dev, dev], 0, &mut [0; 200]), 100);
    cu.fail(c"cuMemcpyAsync", 0, 0);
    // What is gone is refused by the driver, not followed.
    cu.free(a);
    assert_eq!(write(&[dev], 0, &[1; 100]), 0);
}

/// # Safety
/// As of [`pending::start`].
unsafe fn start(part: &Part) -> Box<dyn PendingCopy> {
    let memory = registry::of(Kind::Cuda);
    // SAFETY: the caller's promise.
    unsafe { memory.start(&[*part], Vec::<Opened>::new(), true) }.unwrap()
}

#[test]
fn copies_in_flight_come_to_an_end() {
    let (_alone, cu) = alone();
    let len = (3 << 20) + 5;
    let (a, text) = (cu.alloc(len), pattern(len, 3));
    // SAFETY: `text` outlives the copy.
    let mut pending = unsafe { start(&Part { dst: a, src: text.as_ptr().addr(), len }) };
    let mut polls = 0;
    while !pending.poll().unwrap() {
        polls += 1;
    }
    assert!(polls >= 3, "memory that is not page-locked goes in pieces, so that others get their turn");
    assert!(cu.read(a, len) == text);
    cu.fail(c"cuMemcpyAsync", 2, 700);
    // SAFETY: as above.
    let mut pending = unsafe { start(&Part { dst: a, src: text.as_ptr().addr(), len }) };
    let end = loop {
        match pending.poll() {
            Ok(false) => {}
            other => break other,
        }
    };
    assert_eq!(end.map_err(|e| e.code), Err(700));
    cu.fail(c"cuMemcpyAsync", 0, 0);
    drop(pending);
    cu.free(a);
}

/// What ends a capture was seen with the driver itself: the stand-in's `capture` says it.
#[test]
fn a_capture_of_the_programs_goes_on_whatever_is_copied_meanwhile() {
    let (_alone, cu) = alone();
    let len = (3 << 20) + 5;
    let (a, text, captured) = (cu.alloc(len), pattern(len, 3), cu.stream());
    let mut own = vec![0u8; 1 << 20];
    let disturbs = |name: &str, work: &mut dyn FnMut()| {
        cu.capture(captured);
        work();
        assert!(cu.end_capture(captured), "{name}");
    };
    disturbs("waited for", &mut || assert_eq!(write(&[span(a, len)], 0, &text), len));
    disturbs("in flight", &mut || {
        // SAFETY: `text` outlives the copy.
        let mut pending = unsafe { start(&Part { dst: a, src: text.as_ptr().addr(), len }) };
        while !pending.poll().unwrap() {}
    });
    // SAFETY: `text` outlives the copy.
    disturbs("dropped", &mut || drop(unsafe { start(&Part { dst: a, src: text.as_ptr().addr(), len }) }));
    disturbs("page-locked", &mut || {
        // SAFETY: it is let go of before `own`.
        drop(unsafe { registry::of(Kind::Cuda).lock_host(own.as_mut_ptr().addr(), own.len()) }.unwrap());
    });
    disturbs("asked", &mut || {
        // SAFETY: the stream is there.
        let refused = unsafe { cuda::Stream::new(captured) }.unwrap_err();
        assert!(refused.is_capture() && refused.errno() == libc::EOPNOTSUPP);
    });
    // SAFETY: the stream is there.
    let stream = unsafe { cuda::Stream::new(captured) }.unwrap();
    disturbs("asked whether it is done", &mut || assert_eq!(stream.is_done(), Ok(false)));
    assert_eq!(stream.is_done(), Ok(true));
    // What the thread had set itself is as it was: its own calls are as strict as before.
    cu.capture(captured);
    assert!(cu.status(c"cuEventQuery", 0) == 900 && !cu.end_capture(captured));
    cu.drop_stream(captured);
    cu.free(a);
}

#[test]
fn an_address_that_is_used_again_is_another_allocation() {
    let (_alone, cu) = alone();
    let mut seen: Vec<Export> = Vec::new();
    let mut again = false;
    for _ in 0..20 {
        let a = cu.alloc(8192);
        let e = cuda::export(a + 100, 1000, 8).unwrap();
        assert_eq!(e.len(), 1);
        assert_eq!((e[0].handle_type, e[0].base, e[0].len), (HandleType::Legacy, a as u64, 8192));
        assert_eq!(cuda::export(a, 8192, 8).unwrap(), e, "remembered");
        let number = hmem::registry::of(Kind::Cuda).number(a + 100);
        assert_eq!(number, e.first().map(|e| e.id), "is what distinguishes it");
        again |= seen.iter().any(|s| s.base == a as u64);
        assert!(seen.iter().all(|s| s.id != e[0].id && s.token != e[0].token));
        seen.push(e[0]);
        cu.free(a);
        assert!(cuda::export(a, 1, 8).is_err());
        assert_eq!(hmem::registry::of(Kind::Cuda).number(a), None);
    }
    assert!(again, "the kernel gave no address out twice: the test tests nothing");
}

#[test]
fn what_cannot_be_shared_is_refused_with_the_drivers_word() {
    let (_alone, cu) = alone();
    for at in [cu.alloc_async(100), cu.alloc_managed(100)] {
        assert_eq!(cuda::export(at, 100, 8), Err(Error(801)));
        cu.free(at);
    }
    let at = cu.alloc(100);
    cu.fail(c"cuIpcGetMemHandle", 0, 1);
    assert_eq!(cuda::export(at, 100, 8), Err(Error(1)));
    cu.fail(c"cuIpcGetMemHandle", 0, 0);
    assert!(cuda::export(at, 100, 8).is_ok());
    assert_eq!(cuda::export(at, 1 << 30, 8), Err(Error(500)), "it ends before that");
    // Whole pages are asked for: others the driver does not take.
    assert_eq!(cuda::export_dmabuf(at + 5, 90, true).unwrap_err(), Error(801));
    cu.free(at);
    let at = cu.map(3);
    assert_eq!(cuda::export(at + 5, 5 << 20, 8).unwrap().len(), 3);
    assert_eq!(cuda::export(at + 5, 5 << 20, 2), Err(Error(500)), "more pieces than a peer may be sent");
    // A descriptor keeps the memory alive, so none is kept of what is gone.
    let fds = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let open = fds();
    cu.unmap(at, 3);
    let other = cu.map(1);
    cuda::export(other, 1, 8).unwrap();
    assert!(fds() < open, "{} < {open}", fds());
    cu.unmap(other, 1);
}

/// Memory of two devices in one range is not exported to an adapter as memory of the first device.
#[test]
fn range_of_two_devices_is_not_exported_as_the_first_ones() {
    let (_alone, cu) = alone();
    let piece = 2 << 20;
    let at = cu.map_on(&[1, 1, 0]);
    let of = |at, len| registry::of(Kind::Cuda).to_adapter(at, len);
    assert_eq!((of(at, 2 * piece), of(at + 2 * piece, piece)), (Some((0, 1)), Some((0, 0))));
    assert_eq!((of(at + piece, piece + 1), of(at, 3 * piece)), (None, None));
    assert_eq!(of(at, 4 * piece), None, "it ends before that");
    let calls = cu.calls(c"cuMemGetHandleForAddressRange");
    assert_eq!(cuda::export_dmabuf(at, 3 * piece, false).unwrap_err(), Error(801));
    assert_eq!(cu.calls(c"cuMemGetHandleForAddressRange"), calls);
    // Each allocation is of its own device.
    let devices: Vec<_> = cuda::export(at, 3 * piece, 8).unwrap().iter().map(|e| e.device).collect();
    assert!(devices[0] == devices[1] && devices[1] != devices[2]);
    cu.unmap(at, 3);
}

/// The device's attributes say when it sees what an adapter writes, and a flush is one of its context.
#[test]
fn a_device_sees_what_adapters_write_as_its_attributes_say() {
    let (_alone, cu) = alone();
    let (plain, managed) = (cu.alloc(100), cu.alloc_managed(100));
    let memory = registry::of(Kind::Cuda);
    // GPU_DIRECT_RDMA_WRITES_ORDERING, GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS
    let says = |ordering, options| {
        cu.attribute(118, ordering);
        cu.attribute(117, options);
        memory.adapter_writes(plain + 50)
    };
    assert_eq!((says(100, 0), says(200, 3)), (AdapterWrites::Seen, AdapterWrites::Seen));
    assert_eq!((says(0, 2), says(0, 0)), (AdapterWrites::Unknown, AdapterWrites::Unknown));
    assert!(memory.flush_adapter_writes(plain).is_err(), "a flush that the device does not have");
    assert_eq!(says(0, 3), AdapterWrites::Flushed);
    assert_eq!(memory.adapter_writes(managed), AdapterWrites::Unknown);
    let flushes = cu.calls(c"cuFlushGPUDirectRDMAWrites");
    memory.flush_adapter_writes(plain + 50).unwrap();
    assert_eq!(cu.calls(c"cuFlushGPUDirectRDMAWrites"), flushes + 1);
    says(100, 0);
    cu.free(plain);
    cu.free(managed);
}

/// What synchronous calls do to shared memory is done when they return.
/// Where the driver lets that be said of the allocation: the context's flag waits for kernels.
#[test]
fn synchronous_calls_on_shared_memory_are_complete_on_return() {
    let (_alone, cu) = alone();
    let (plain, mapped) = (cu.alloc(100), cu.map(1));
    let names = [c"cuPointerSetAttribute", c"cuCtxSetFlags"];
    let calls = || names.map(|name| cu.calls(name));
    let before = calls();
    cuda::export(plain, 100, 1).unwrap();
    cuda::export(mapped, 100, 1).unwrap();
    assert_eq!(calls(), [before[0] + 1, before[1]]);
    assert!(registry::of(Kind::Cuda).to_adapter(plain, 100).is_some());
    assert!(registry::of(Kind::Cuda).to_adapter(mapped, 100).is_some());
    assert_eq!(calls(), [before[0] + 2, before[1]]);
    cu.free(plain);
    cu.unmap(mapped, 1);
}

#[test]
fn streams_that_could_not_all_be_made_are_not_left_behind() {
    let (_alone, cu) = alone();
    let ctx = cu.make_context(0);
    let a = cu.alloc(100);
    let gone = cu.calls(c"cuStreamDestroy_v2");
    cu.fail(c"cuStreamCreate", 4, 2);
    assert_eq!(write(&[span(a, 100)], 0, &[1; 100]), 0);
    assert_eq!(cu.calls(c"cuStreamDestroy_v2") - gone, 3);
    cu.fail(c"cuStreamCreate", 0, 0);
    assert_eq!(write(&[span(a, 100)], 0, &[1; 100]), 100);
    cu.free(a);
    cu.end_context(ctx);
    cu.enter(0);
}

#[test]
fn the_path_is_the_first_that_nobody_refuses() {
    let (_alone, cu) = alone();
    let (plain, pool) = (cu.alloc(100), cu.alloc_async(100));
    let found = find(span(plain, 100), no_device);
    assert_eq!((found.path, found.refused[Path::Dmabuf as usize]), (Path::PeerMap, libc::ENODEV));
    let found = find(span(plain, 100), any_device(span(plain, 100)));
    assert_eq!((found.path, found.refused[Path::DmabufPcie as usize]), (Path::PeerMap, libc::EOPNOTSUPP));
    let found = find(span(pool, 100), no_device);
    assert_eq!((found.path, found.refused[Path::PeerMap as usize]), (Path::Staged, libc::EOPNOTSUPP));
    assert!(found.why.contains("peer mapping: CUDA error 801"), "{}", found.why);
    assert_eq!(find(Span::leak(1), no_device).path, Path::Cpu);
    cu.free(plain);
    cu.free(pool);
}

#[test]
fn host_memory_is_page_locked_for_as_long_as_it_is_kept() {
    let (_alone, cu) = alone();
    let room = vec![0u8; 1 << 20];
    let at = room.as_ptr().addr();
    // SAFETY: `room` lives longer than what is returned.
    let locked = unsafe { registry::of(Kind::Cuda).lock_host(at, room.len()) }.unwrap();
    assert_eq!(cuda::info(at + 5).map(|i| i.sort), Some(Sort::Host));
    assert_eq!(classify(at, 8), Kind::System);
    drop(locked);
    assert_eq!(cuda::info(at + 5), None);
    cu.fail(c"cuMemHostRegister_v2", 1, 2);
    // SAFETY: as above.
    assert!(unsafe { registry::of(Kind::Cuda).lock_host(at, room.len()) }.is_none());
}

/// A context that was made after the buffers, and ends before them.
#[test]
fn a_lock_that_has_ended_with_its_context_is_not_undone_in_it() {
    let (_alone, cu) = alone();
    let mut room = vec![0u8; 1 << 20];
    let at = room.as_mut_ptr().expose_provenance();
    let ctx = cu.make_context(0);
    // SAFETY: `room` lives longer than what is returned.
    let locked = unsafe { registry::of(Kind::Cuda).lock_host(at, room.len()) }.unwrap();
    assert!(registry::of(Kind::Cuda).is_host_locked(at));
    cu.end_context(ctx);
    assert!(!registry::of(Kind::Cuda).is_host_locked(at));
    // Another one is there in its place.
    cu.enter(0);
    // SAFETY: as above.
    let again = unsafe { registry::of(Kind::Cuda).lock_host(at, room.len()) }.unwrap();
    let calls = [c"cuCtxPushCurrent_v2", c"cuMemHostUnregister"].map(|name| cu.calls(name));
    drop(locked);
    assert_eq!([c"cuCtxPushCurrent_v2", c"cuMemHostUnregister"].map(|name| cu.calls(name)), calls);
    assert!(registry::of(Kind::Cuda).is_host_locked(at), "that of the other one is not undone");
    drop(again);
    assert!(!registry::of(Kind::Cuda).is_host_locked(at));
}

/// Bytes of a staged message, out of a device's memory and into it.
#[test]
fn buffers_are_page_locked_anew_when_their_context_is_gone() {
    let (_alone, cu) = alone();
    let len = 3 << 20;
    let pool = hmem::stage::Pool::new(1, len);
    for round in 0..6 {
        // By cuCtxDestroy, and by cudaDeviceReset.
        let ctx = if round % 2 == 0 { Some(cu.make_context(0)) } else { None };
        let (a, text) = (cu.alloc(len), pattern(len, round));
        cu.write(a, &text);
        let locks = cu.calls(c"cuMemHostRegister_v2");
        for _ in 0..3 {
            let mut transfer = pool.take().unwrap().read(&[span(a, len)], 0, len);
            while transfer.poll().is_none() {}
            assert!(transfer.buffer().unwrap().bytes()[..len] == text);
            let mut host = vec![0u8; len];
            let part = Part { dst: host.as_mut_ptr().expose_provenance(), src: a, len };
            // SAFETY: `host` outlives the copy.
            let mut flight = unsafe { registry::of(Kind::Cuda).start_to_host(&[part], Vec::new()) }.unwrap();
            while !flight.poll().unwrap() {}
            drop(flight);
            assert!(host == text);
        }
        // The buffer of the pool, and those of the process that one copy uses.
        let locks = cu.calls(c"cuMemHostRegister_v2") - locks;
        assert!((2..=9).contains(&locks), "{locks} in round {round}");
        cu.free(a);
        match ctx {
            Some(ctx) => cu.end_context(ctx),
            None => cu.reset(0),
        }
        cu.enter(0);
    }
}

#[test]
fn nothing_is_initialised_and_no_context_is_made() {
    let (_alone, cu) = alone();
    let before = (cu.calls(c"cuInit"), cu.calls(c"cuCtxCreate_v2"), cu.calls(c"cuDevicePrimaryCtxRetain"));
    let a = cu.alloc(10);
    write(&[span(a, 10)], 0, &[1; 10]);
    cu.free(a);
    // Device 1 is idle: it was not used in this test, or its context was made by another one.
    let after = (cu.calls(c"cuInit"), cu.calls(c"cuCtxCreate_v2"), cu.calls(c"cuDevicePrimaryCtxRetain"));
    assert_eq!((after.0, after.1), (before.0, before.1));
    assert!(after.2 <= before.2 + 1, "held once, being active already");
}

#[test]
fn bounce_buffers_are_made_beside_the_memory_and_go_with_the_arena() {
    use hmem::bounce::{Arena, NoRoom};
    let (_alone, cu) = alone();
    let len = 300_000;
    let pool = cu.alloc_async(len);
    let near = [span(pool, len)];
    let text = pattern(len, 4);
    cu.write(pool, &text);
    let before = cu.in_use();
    let arena = Arena::new(64 << 10);
    assert_eq!(cu.in_use(), before, "before they are needed");
    // Without memory it is not asked for with each need.
    let calls = cu.calls(c"cuMemAlloc_v2");
    cu.fail(c"cuMemAlloc_v2", 0, 2);
    for _ in 0..200 {
        assert!(matches!(arena.take(&near, len), Err(NoRoom::Never(_))));
    }
    assert_eq!(cu.calls(c"cuMemAlloc_v2"), calls + 1);
    cu.fail(c"cuMemAlloc_v2", 0, 0);
    let room = (0..100).find_map(|_| arena.take(&near, len).ok()).expect("memory is asked for again");
    assert!(cu.in_use() > before);
    let at = room.span().addr() as usize;
    let info = cuda::info(at).unwrap();
    assert_eq!((info.sort, info.device, info.len), (Sort::Plain, 0, arena.capacity() as u64));
    assert_eq!(registry::of(Kind::Cuda).export_ipc(at, len, 1).unwrap()[0].handle_type, HandleType::Legacy);
    assert!(room.fill(&near, 5).is_none(), "more than there is");
    let mut fill = arena.take(&near, len).unwrap().fill(&near, 0).unwrap();
    while fill.poll().is_none() {}
    let room = fill.into_room();
    assert!(cu.read(room.span().addr() as usize, len) == text);
    // What is gone, as with its context, is not used any more.
    cu.free(info.base as usize);
    let other = cu.alloc(arena.capacity());
    let next = arena.take(&near, len).unwrap();
    let now = cuda::info(next.span().addr() as usize).unwrap();
    assert!(now.sort == Sort::Plain && now.id != info.id && now.base != other as u64);
    drop((room, next, arena));
    cu.free(other);
    assert_eq!(cu.in_use(), before);
    cu.free(pool);
}
