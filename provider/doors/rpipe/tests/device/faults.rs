//! What is refused, and what fails.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use super::*;

fn words(fault: Error) -> String {
    fault.to_string()
}

#[test]
fn a_process_without_cuda_or_without_that_device_has_that_error() {
    let _alone = turn();
    let [a, _b] = job("none", &Settings::default());
    if !is_real() {
        // One test is one process under nextest; under cargo test another may have loaded the stand-in.
        if let Err(none) = hmem::cuda::describe() {
            let refused = Pipe::open(&a, 1, &end(Side::Reader, true)).unwrap_err();
            assert!(matches!(refused, Error::Unsupported(_)));
            assert!(words(refused).contains(&none), "{none}");
        }
    }
    let cu = driver();
    let number = PipeOptions { device: Some(Device::Number(999)), ..PipeOptions::new(Side::Reader) };
    let refused = words(Pipe::open(&a, 1, &number).unwrap_err());
    assert!(refused.contains("device 999") && refused.contains("devices"), "{refused}");
    if !is_real() {
        // It is there, and has no context.
        let other = PipeOptions { device: Some(Device::Number(1)), ..PipeOptions::new(Side::Reader) };
        let refused = words(Pipe::open(&a, 1, &other).unwrap_err());
        assert!(refused.contains("make a context"), "{refused}");
        cu.enter(1);
        Pipe::open(&a, 1, &other).unwrap();
    }
}

#[test]
fn the_variable_says_which_device() {
    if is_real() {
        return;
    }
    let (_alone, cu) = alone();
    cu.enter(1);
    cu.enter(0);
    let settings = Settings { device: Some(Device::Number(1)), ..Settings::default() };
    let [a, b] = job("variable", &settings);
    thread::scope(|s| {
        s.spawn(|| {
            let mut pipe = Pipe::open(&a, 1, &end(Side::Writer, false)).unwrap();
            write(&cu, &mut pipe, false, &pattern(1, 100)).unwrap();
        });
        s.spawn(|| {
            cu.enter(0);
            let mut pipe = Pipe::open(&b, 0, &end(Side::Reader, true)).unwrap();
            assert_eq!(pipe.on_device(patience()).unwrap().device, 1);
            assert!(read(&cu, &mut pipe, true).unwrap() == pattern(1, 100));
        });
    });
}

/// Mappings of pipes that this process has.
fn maps() -> usize {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("memfd:strait-rpipe")).count()
}

/// Runs a writer and a reader whose heap cannot be had; the error of each.
fn both_errors(name: &str, settings: &Settings, cu: Driver) -> (Error, Error) {
    let [a, b] = job(name, settings);
    let over = AtomicBool::new(false);
    thread::scope(|s| {
        let writer = s.spawn(|| {
            cu.enter(0);
            let mut pipe = Pipe::open(&a, 1, &PipeOptions::new(Side::Writer)).unwrap();
            let fault = pipe.alloc(8, 1, patience()).unwrap_err();
            over.store(true, Relaxed);
            fault
        });
        let reader = s.spawn(|| {
            cu.enter(0);
            let mut pipe = Pipe::open(&b, 0, &end(Side::Reader, true)).unwrap();
            let fault = pipe.read(8, patience()).unwrap_err();
            assert_eq!(pipe.read(8, patience()).unwrap_err(), fault, "each call has it");
            assert_eq!(maps(), 0, "nothing of the reader's end is left");
            // Until the writer is, too.
            while !over.load(Relaxed) {
                b.progress().unwrap();
                thread::yield_now();
            }
            fault
        });
        (writer.join().unwrap(), reader.join().unwrap())
    })
}

#[test]
fn paths_that_do_not_map_have_no_heaps_of_devices_and_both_ends_have_that_error() {
    let (_alone, cu) = alone();
    let far = Settings { map: false, ..Settings::default() };
    let frames = Settings { backend: "strait:frames".into(), ..Settings::default() };
    for (name, settings) in [("far", far), ("frames", frames)] {
        let (writer, reader) = both_errors(name, &settings, cu);
        assert!(matches!(&reader, Error::Unsupported(why) if why.contains("on this host")), "{reader:?}");
        assert!(matches!(&writer, Error::Unsupported(why) if why.contains("the reader")), "{writer:?}");
    }
}

#[test]
fn a_heap_that_the_device_cannot_make_or_share_is_an_error_at_both_ends() {
    if is_real() {
        return;
    }
    let (_alone, cu) = alone();
    let (before, open) = (cu.in_use(), descriptors());
    for (call, code) in [
        (c"cuMemCreate", 2),
        (c"cuMemExportToShareableHandle", 801),
        (c"cuMemAddressReserve", 2),
        (c"cuMemMap", 1),
        (c"cuMemSetAccess", 801),
        (c"cuMemGetAllocationGranularity", 801),
    ] {
        cu.fail(call, 0, code);
        let (writer, reader) = both_errors("refused", &Settings::default(), cu);
        cu.fail(call, 0, 0);
        let kind = match code {
            2 => matches!(reader, Error::Exhausted(_)),
            801 => matches!(reader, Error::Unsupported(_)),
            _ => matches!(reader, Error::System(_)),
        };
        assert!(kind && words(reader.clone()).contains("bytes of device 0"), "{call:?}: {reader:?}");
        assert!(matches!(writer, Error::Unsupported(_)), "{call:?}: {writer:?}");
        settles(&cu, before, open, "nothing was made");
    }
}

#[test]
fn a_writer_that_cannot_map_the_heap_has_that_error_until_it_can() {
    if is_real() {
        return;
    }
    let (_alone, cu) = alone();
    let [a, b] = job("import", &Settings::default());
    thread::scope(|s| {
        s.spawn(|| {
            cu.enter(0);
            cu.fail(c"cuMemImportFromShareableHandle", 0, 801);
            let mut pipe = Pipe::open(&a, 1, &end(Side::Writer, false)).unwrap();
            for _ in 0..3 {
                let fault = pipe.alloc(8, 1, patience()).unwrap_err();
                assert!(
                    matches!(&fault, Error::Unsupported(why) if why.contains("reader's heap")),
                    "{fault:?}"
                );
            }
            cu.fail(c"cuMemImportFromShareableHandle", 0, 0);
            write(&cu, &mut pipe, false, &pattern(5, 5000)).unwrap();
        });
        s.spawn(|| {
            cu.enter(0);
            let mut pipe = Pipe::open(&b, 0, &end(Side::Reader, true)).unwrap();
            assert!(read(&cu, &mut pipe, true).unwrap() == pattern(5, 5000));
        });
    });
}

#[test]
fn a_copy_that_fails_announces_no_message_and_the_block_stays_the_writers() {
    if is_real() {
        return;
    }
    let (_alone, cu) = alone();
    for (name, writers, numbers) in
        [("host", false, false), ("device", true, false), ("numbers", false, true)]
    {
        let [a, b] = job(name, &Settings::default());
        thread::scope(|s| {
            s.spawn(|| {
                cu.enter(0);
                let mut pipe = Pipe::open(&a, 1, &end(Side::Writer, writers)).unwrap();
                for n in 0..3 {
                    let block = pipe.alloc(5000, 1, patience()).unwrap();
                    fill(&cu, writers, pipe.address(block).unwrap(), &pattern(n, 5000));
                    cu.fail(c"cuMemcpyAsync", 1, 700);
                    let failed = pipe.write(block, None).unwrap_err();
                    cu.fail(c"cuMemcpyAsync", 0, 0);
                    assert!(matches!(failed, Error::System(_)), "{failed:?}");
                    // Nor is one by another way.
                    cu.fail(c"cuMemcpyAsync", 1, 700);
                    // SAFETY: as many bytes.
                    let failed = unsafe { pipe.write_from([1; 99].as_ptr(), 99, patience()) }.unwrap_err();
                    cu.fail(c"cuMemcpyAsync", 0, 0);
                    assert!(matches!(failed, Error::System(_)), "{failed:?}");
                    pipe.write(block, None).unwrap();
                }
                let (stats, ..) = pipe.writer_stats().unwrap();
                assert_eq!(stats.messages, 3);
            });
            s.spawn(|| {
                cu.enter(0);
                let options = PipeOptions { numbers, ..end(Side::Reader, true) };
                let mut pipe = Pipe::open(&b, 0, &options).unwrap();
                for n in 0..3 {
                    let (block, len) = pipe.read(usize::MAX, patience()).unwrap();
                    // The writer has its calls fail: this thread's reads are to be none of them.
                    let bytes = look(&cu, &mut pipe, true, block, len);
                    assert!(bytes == pattern(n, 5000), "message {n}");
                    pipe.free(block).unwrap();
                }
            });
        });
    }
}
