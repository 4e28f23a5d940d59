//! A driver that refuses what is queued on a stream, at each call: nothing hangs, and what was queued before
//! is done. A file of its own, since calls are counted in the process.

use std::ffi::CStr;
use std::sync::Arc;

use cuda_stand_in::driver::Driver;
use p2pmem::storage::{File, Op, Options, Request};

#[test]
fn each_call_that_the_driver_refuses_is_an_error_and_the_file_works_on() {
    const LEN: usize = 21 << 20;
    let cu = Driver::start();
    let path =
        std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("faults-{}", std::process::id()));
    let content: Vec<u8> = (0..LEN).map(|n| (n * 7 + (n >> 8) * 13) as u8).collect();
    std::fs::write(&path, &content).unwrap();
    let options = Options { write: true, cufile: false, ..Options::default() };
    let (at, stream) = (cu.alloc(LEN), cu.stream());
    // A file of its own each: one that was used has page-locked buffers.
    let begin = |write| {
        let file = Arc::new(File::open(&path, options).unwrap());
        let op = Op { write, addr: at, len: LEN, offset: 0 };
        // SAFETY: the memory stays, and the stream.
        unsafe { Request::submit_on(&file, &[op], stream) }
    };
    let mut refusals = 0;
    let places: [(&CStr, u64); 5] = [
        (c"cuStreamGetCtx", 1),
        (c"cuStreamIsCapturing", 1),
        (c"cuMemHostRegister_v2", 4),
        (c"cuLaunchHostFunc", 7),
        (c"cuMemcpyAsync", 6),
    ];
    for (name, most) in places {
        for nth in 1..=most {
            // The file before goes with the last thread that has it, and its page-locked buffers with it: until
            // then there may be fewer calls.
            let refused = (0..1000).find_map(|_| {
                cu.fail(name, nth, 999);
                begin(nth % 2 == 0).map(|request| assert!(request.wait(None))).err()
            });
            assert_ne!(refused.unwrap_or_else(|| panic!("{name:?} {nth} is not called")).errno(), 0);
            refusals += 1;
            cu.fail(name, 0, 0);
            let request = begin(false).unwrap();
            assert!(request.wait(None));
            assert_eq!(*request.take().unwrap()[0].as_ref().unwrap(), LEN, "{name:?} {nth}");
            assert!(cu.read(at, LEN) == content, "{name:?} {nth}");
            drop(request);
        }
    }
    assert_eq!(refusals, 19);
    // A stream that dies: the calls do not come, and the request ends all the same.
    cu.fail(c"cuStreamQuery", 0, 700);
    cu.fail(c"cuLaunchHostFunc", 0, 0);
    let held = begin(false).unwrap();
    let ended = held.wait(None);
    cu.fail(c"cuStreamQuery", 0, 0);
    assert!(ended);
    cu.wait(stream);
    drop(held);
    cu.drop_stream(stream);
    cu.free(at);
    std::fs::remove_file(&path).unwrap();
}
