use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};

use cuda_stand_in::driver::Driver;

use crate::storage::bounce::WORKERS;
use crate::storage::{File, Op, Options, Request};

/// One of these tests has calls of the driver fail in the whole process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// With every thread of the file held up the disk is never asked: the stream has to wait for it, whatever is
/// queued behind.
#[test]
fn a_stream_waits_for_the_disk() {
    const LEN: usize = 9 << 20;
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let cu = Driver::start();
    let path = std::env::temp_dir().join(format!("strait-stream-waits-{}", std::process::id()));
    std::fs::write(&path, vec![0x5a; LEN]).unwrap();
    let options = Options { write: true, cufile: false, ..Options::default() };
    let file = Arc::new(File::open(&path, options).unwrap());
    let (at, other, stream) = (cu.alloc(LEN), cu.alloc(LEN), cu.stream());
    for write in [false, true] {
        cu.write(at, &vec![if write { 0xa5 } else { 0 }; LEN]);
        cu.write(other, &vec![1; LEN]);
        let mut holds = Vec::new();
        for _ in 0..WORKERS {
            let (go, held) = channel::<()>();
            file.piece_workers.post(Box::new(move || {
                let _ = held.recv();
            }));
            holds.push(go);
        }
        let op = Op { write, addr: at, len: LEN, offset: 0 };
        // SAFETY: the memory stays, and the stream.
        let request = unsafe { Request::submit_on(&file, &[op], stream) }.unwrap();
        cu.copy_async(other, at, LEN, stream);
        // However long it has: nothing comes.
        assert!(!request.wait(Some(std::time::Duration::from_millis(50))));
        assert_eq!(cu.read(other, LEN), vec![1; LEN]);
        drop(holds);
        assert!(request.wait(None));
        assert_eq!(*request.take().unwrap()[0].as_ref().unwrap(), LEN);
        cu.wait(stream);
        let byte = if write { 0xa5 } else { 0x5a };
        assert!(cu.read(other, LEN) == vec![byte; LEN] && std::fs::read(&path).unwrap() == vec![byte; LEN]);
    }
    drop(file);
    cu.drop_stream(stream);
    std::fs::remove_file(&path).unwrap();
}

/// Memory of the program's that a thread may still write is not given back by a stream that has failed.
#[test]
fn a_stream_that_fails_is_over_when_no_thread_has_the_memory() {
    const LEN: usize = 1 << 20;
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let cu = Driver::start();
    let path = std::env::temp_dir().join(format!("strait-stream-fails-{}", std::process::id()));
    std::fs::write(&path, vec![0x5a; LEN]).unwrap();
    let file = Arc::new(File::open(&path, Options { cufile: false, ..Options::default() }).unwrap());
    let (mut memory, stream) = (vec![0u8; LEN], cu.stream());
    let mut holds = Vec::new();
    for _ in 0..WORKERS {
        let (go, held) = channel::<()>();
        file.piece_workers.post(Box::new(move || {
            let _ = held.recv();
        }));
        holds.push(go);
    }
    let op = Op { write: false, addr: memory.as_mut_ptr().expose_provenance(), len: LEN, offset: 0 };
    // SAFETY: the memory stays, and the stream.
    let request = unsafe { Request::submit_on(&file, &[op], stream) }.unwrap();
    assert!(!request.wait(Some(std::time::Duration::from_millis(50))));
    cu.fail(c"cuStreamQuery", 0, 700);
    assert!(!request.wait(Some(std::time::Duration::from_secs(1))));
    drop(holds);
    assert!(request.wait(None));
    cu.fail(c"cuStreamQuery", 0, 0);
    let results = request.take().unwrap();
    assert!(
        results[0].as_ref().is_ok_and(|n| *n == LEN)
            || results[0].as_ref().is_err_and(|e| e.errno() == libc::EIO)
    );
    cu.wait(stream);
    drop((request, file));
    cu.drop_stream(stream);
    std::fs::remove_file(&path).unwrap();
    assert!(memory.iter().all(|b| *b == 0x5a || *b == 0));
}
