//! cuFile's functions, over a library in its place: what is called with what, and what becomes of errors.
//!
//! A file of its own, since the library is looked for once in a process.

use std::ffi::c_int;
use std::process::Command;

use cuda_stand_in::driver::Driver;
use p2pmem::storage::{File, Op, Options, Request, Way};

/// A variable of the library's.
fn variable(library: *mut libc::c_void, name: &std::ffi::CStr) -> *mut c_int {
    // SAFETY: a library that is loaded, and a C string.
    let at = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert!(!at.is_null());
    at.cast()
}

#[test]
fn memory_of_a_gpu_goes_by_cufile_and_by_host_memory_where_that_fails() {
    let dir =
        std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("cufile-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let library = dir.join("libcufile.so.0");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cufile.c");
    let compiled = Command::new("cc")
        .args(["-std=gnu11", "-shared", "-fPIC", "-Wall", "-Werror", "-Wl,-soname,libcufile.so.0", "-o"])
        .arg(&library)
        .args([source, "-ldl"])
        .status();
    match compiled {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return eprintln!("skipped: no C compiler"),
        done => assert!(done.unwrap().success()),
    }
    // Loaded by its path it is what the linker finds by its name.
    let path = std::ffi::CString::new(library.to_str().unwrap()).unwrap();
    // SAFETY: a library of this test's.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null());
    let [fail, calls, open] = [c"cufile_stand_in_fail", c"cufile_stand_in_calls", c"cufile_stand_in_open"]
        .map(|n| variable(library, n));
    // SAFETY: variables of a library that stays, of which no other thread knows.
    let get = |at: *mut c_int| unsafe { at.read_volatile() };

    let cu = Driver::start();
    let len = (5 << 20) + 77;
    let content: Vec<u8> = (0..len).map(|n| (n * 7 + (n >> 8) * 13) as u8).collect();
    let path = dir.join("file");
    std::fs::write(&path, &content).unwrap();
    let at = cu.alloc(len);
    let file = File::open(&path, Options { write: true, direct: false, ..Options::default() }).unwrap();
    assert_eq!(get(open), 0, "no file is registered before it meets CUDA's memory");
    let captured = cu.stream();
    cu.capture(captured);
    // SAFETY: inside of the allocation.
    unsafe {
        assert_eq!(file.read(at + 8, len - 100, 33).unwrap(), len - 100);
        assert!(cu.end_capture(captured), "a capture of the program's goes on");
        assert_eq!(cu.read(at + 8, len - 100), content[33..len - 67]);
        assert_eq!(file.read(at, 4096, len as u64 - 10).unwrap(), 10, "the file ends");
        cu.write(at, &vec![0x77; 5000]);
        assert_eq!(file.write(at, 5000, 70).unwrap(), 5000);
    }
    assert_eq!(std::fs::read(&path).unwrap()[70..5070], [0x77; 5000]);
    let report = file.report();
    assert_eq!((report.last, report.bytes), (Some(Way::Cufile), [0, (len - 100 + 10 + 5000) as u64, 0, 0]));
    assert_eq!((get(calls), get(open)), (3, 1));
    for (how, words) in
        [(1, "cuFileRead: No space left"), (2, "cuFileRead: CU_FILE_PLATFORM_NOT_SUPPORTED (5007)")]
    {
        // SAFETY: as above.
        unsafe { fail.write(how) };
        // SAFETY: inside of the allocation.
        assert_eq!(unsafe { file.read(at, 5000, 70) }.unwrap(), 5000);
        assert_eq!(cu.read(at, 5000), [0x77; 5000]);
        let report = file.report();
        assert!(report.last == Some(Way::Bounce) && report.why.contains(words), "{report:?}");
    }
    // On a stream.
    // SAFETY: as above.
    unsafe { fail.write(0) };
    let (file, stream) = (std::sync::Arc::new(file), cu.stream());
    let queue = |op: Op| {
        // SAFETY: inside of the allocation, which stays.
        let request = unsafe { Request::submit_on(&file, &[op], stream) }.unwrap();
        assert!(request.wait(None));
        request.take().unwrap().remove(0)
    };
    let before = get(calls);
    assert_eq!(queue(Op { write: true, addr: at, len: 5000, offset: 100 }).unwrap(), 5000);
    cu.write(at, &vec![0; len]);
    assert_eq!(queue(Op { write: false, addr: at, len, offset: 70 }).unwrap(), len - 70, "the file ends");
    assert!(cu.read(at, len - 70) == std::fs::read(&path).unwrap()[70..]);
    assert!(get(calls) == before + 2 && file.report().last == Some(Way::Cufile));
    // It may refuse to queue, upon which host memory is taken; or fail later, upon which the next one is.
    let read = Op { write: false, addr: at, len: 5000, offset: 70 };
    // SAFETY: as above.
    unsafe { fail.write(3) };
    assert_eq!(queue(read).unwrap(), 5000);
    assert!(file.report().why.contains("cuFileReadAsync: CU_FILE_ASYNC_NOT_SUPPORTED (5038)"));
    // SAFETY: as above.
    unsafe { fail.write(2) };
    let error = queue(read).unwrap_err();
    assert!(error.errno() == libc::EIO && error.to_string().contains("CU_FILE_IO_ERROR (5044)"), "{error}");
    cu.write(at, &[0; 5000]);
    assert_eq!(queue(read).unwrap(), 5000);
    assert_eq!(cu.read(at, 5000), std::fs::read(&path).unwrap()[70..5070]);
    assert!(file.report().why.contains("cuFileReadAsync has failed before"), "{:?}", file.report());
    cu.drop_stream(stream);
    drop(file);
    // The last call of a stream leaves the file to a thread, which may be the last that has it.
    while get(open) != 0 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    // A file that it does not register: the reason names what helps.
    // SAFETY: as above.
    unsafe { fail.write(4) };
    let file = File::open(&path, Options::default()).unwrap();
    // SAFETY: inside of the allocation.
    assert_eq!(unsafe { file.read(at, 5000, 70) }.unwrap(), 5000);
    let why = file.report().why;
    assert!(
        why.contains("CU_FILE_HANDLE_NOT_REGISTERED (5027)") && why.contains("CUFILE_FORCE_COMPAT_MODE"),
        "{why}"
    );
    drop(file);
    cu.free(at);
    std::fs::remove_dir_all(&dir).unwrap();
}
