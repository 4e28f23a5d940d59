//! Kernels: their compilation, launches, and the streams for them.

use hmem::cuda::{OwnStream, Stream};
use hmem::{Kind, registry};

use super::alone;

const ADD_ONE: &std::ffi::CStr = c".version 6.0
.target sm_50
.address_size 64

.visible .entry add_one(.param .u64 at, .param .u64 count)
{
    .reg .pred %p<1>;
    .reg .b32 %r<4>;
    .reg .b64 %d<5>;
    ld.param.u64 %d0, [at];
    ld.param.u64 %d1, [count];
    mov.u32 %r0, %ctaid.x;
    mov.u32 %r1, %ntid.x;
    mov.u32 %r2, %tid.x;
    mul.wide.u32 %d2, %r0, %r1;
    cvt.u64.u32 %d3, %r2;
    add.u64 %d2, %d2, %d3;
    setp.ge.u64 %p0, %d2, %d1;
    @%p0 bra DONE;
    add.u64 %d4, %d0, %d2;
    ld.global.u8 %r3, [%d4+0];
    add.u32 %r3, %r3, 1;
    st.global.u8 [%d4+0], %r3;
DONE:
    ret;
}
";

fn with(from: &str, to: &str) -> std::ffi::CString {
    let text = ADD_ONE.to_str().unwrap();
    assert!(text.contains(from));
    std::ffi::CString::new(text.replace(from, to)).unwrap()
}

#[test]
fn a_kernel_runs_in_its_stream_behind_what_is_queued_there() {
    let (_alone, cu) = alone();
    let at = cu.alloc(600);
    let own = OwnStream::new(Some(at)).unwrap();
    let stream = own.stream();
    let add_one = stream.load(ADD_ONE, c"add_one").unwrap();
    let from = cu.alloc_host(600);
    cu.write(from, &[7; 600]);
    // SAFETY: all of it lives until the stream was waited for; the kernel has two parameters.
    unsafe {
        stream.copy(at, from, 600).unwrap();
        stream.launch(add_one, 3, 256, &[at as u64, 600]).unwrap();
        stream.launch(add_one, 1, 100, &[at as u64, 600]).unwrap();
    }
    stream.wait().unwrap();
    assert_eq!(cu.read(at, 100), [9; 100]);
    assert_eq!(cu.read(at + 100, 500), [8; 500]);
    assert_eq!(stream.multiprocessors(), Ok(2));
    // Of another context the kernel is none.
    let ctx = cu.make_context(0);
    let other = OwnStream::new(None).unwrap();
    assert_ne!(other.stream().context_id(), stream.context_id());
    // SAFETY: it is refused.
    let refused = unsafe { other.stream().launch(add_one, 1, 1, &[at as u64, 600]) };
    assert_eq!(refused.unwrap_err().0, 201);
    drop(other);
    cu.end_context(ctx);
    assert!(OwnStream::new(Some(1)).is_err(), "an address that is no device's");
}

#[test]
fn what_the_drivers_compiler_says_is_in_the_error() {
    let (_alone, cu) = alone();
    let own = OwnStream::new(None).unwrap();
    let load = |text: &std::ffi::CStr| own.stream().load(text, c"add_one").unwrap_err();
    for (from, to, why) in [
        ("add.u32 %r3, %r3, 1;", "sad.u32 %r3, %r3, 1;", "line 22: unknown instruction"),
        ("add.u32 %r3, %r3, 1;", "add.u32 %r3, %d3, 1;", "line 22: %d3 has 64 bits, not 32"),
        ("add.u32 %r3, %r3, 1;", "add.u32 %r3, %r9, 1;", "line 22: no register %r9"),
        ("add.u32 %r3, %r3, 1;", "add.u32 %r3, %r3, 1", "line 22: no semicolon"),
        ("st.global.u8", "st.shared.u8", "line 23: unknown instruction"),
        ("bra DONE", "bra GONE", "add_one: no label GONE"),
        ("[count]", "[counts]", "line 11: no such parameter"),
        (".target sm_50\n", "", "line 4: an entry without"),
        ("}\n", "", "no end of one"),
    ] {
        let e = load(&with(from, to));
        assert!(e.call == "cuModuleLoadDataEx" && e.error.0 == 218 && e.log.contains(why), "{e}");
    }
    let e = own.stream().load(ADD_ONE, c"add_two").unwrap_err();
    assert!(e.call == "cuModuleGetFunction" && e.error.0 == 500 && e.log.is_empty(), "{e}");
    cu.fail(c"cuModuleLoadDataEx", 1, 209);
    assert_eq!(load(ADD_ONE).error.0, 209);
    cu.fail(c"cuModuleLoadDataEx", 0, 0);
}

#[test]
fn an_access_outside_an_allocation_or_out_of_line_ends_the_kernel() {
    let (_alone, cu) = alone();
    let own = OwnStream::new(None).unwrap();
    let stream = own.stream();
    let wide = with("ld.global.u8", "ld.global.b32");
    let [bytes, words] = [ADD_ONE, &wide].map(|text| stream.load(text, c"add_one").unwrap());
    let at = cu.alloc(4096) as u64;
    let heap = [0u8; 8];
    let run = |kernel, at, count| {
        // SAFETY: the stand-in checks what is accessed.
        unsafe { stream.launch(kernel, 1, 1024, &[at, count]) }.unwrap();
        stream.wait()
    };
    assert_eq!(run(bytes, at + 4000, 97).unwrap_err().0, 700);
    assert_eq!(run(bytes, heap.as_ptr().expose_provenance() as u64, 8).unwrap_err().0, 700);
    assert_eq!(run(words, at, 2).unwrap_err().0, 716);
    // What had not failed is done, and the stream goes on.
    assert_eq!(cu.read(at as usize + 4000, 96), [1; 96]);
    assert_eq!(run(bytes, at + 4000, 96), Ok(()));
}

#[test]
fn launches_that_the_driver_refuses_are_errors() {
    let (_alone, cu) = alone();
    let own = OwnStream::new(None).unwrap();
    let add_one = own.stream().load(ADD_ONE, c"add_one").unwrap();
    let at = cu.alloc(8) as u64;
    // SAFETY: the memory lives, and what is launched has two parameters.
    let launch = |blocks, threads| unsafe { own.stream().launch(add_one, blocks, threads, &[at, 8]) };
    assert_eq!(launch(0, 1).unwrap_err().0, 1);
    assert_eq!(launch(1, 1025).unwrap_err().0, 1);
    cu.fail(c"cuLaunchKernel", 1, 701);
    assert_eq!(launch(1, 8).unwrap_err().0, 701);
    cu.fail(c"cuLaunchKernel", 0, 0);
    assert_eq!(launch(1, 8), Ok(()));
    // SAFETY: never destroyed before the end of this test.
    let captured = unsafe { Stream::new(cu.stream()) }.unwrap();
    let add_one = captured.load(ADD_ONE, c"add_one").unwrap();
    cu.capture(captured.handle());
    // SAFETY: as above.
    assert_eq!(unsafe { captured.launch(add_one, 1, 8, &[at, 8]) }, Ok(()));
    assert!(cu.end_capture(captured.handle()), "to launch a kernel ends no capture");
    own.stream().wait().unwrap();
    assert_eq!(cu.read(at as usize, 8), [1; 8], "what is captured does not run");
}

#[test]
fn a_stream_whose_context_is_gone_is_not_destroyed_in_one_of_the_same_name() {
    let (_alone, cu) = alone();
    let first = cu.make_context(0);
    let at = cu.alloc(8);
    let gone = OwnStream::new(Some(at)).unwrap();
    let destroyed = cu.calls(c"cuStreamDestroy_v2");
    cu.end_context(first);
    let next = cu.make_context(0);
    assert_eq!(next, first, "names are used again");
    drop(gone);
    assert_eq!(cu.calls(c"cuStreamDestroy_v2"), destroyed);
    let at = cu.alloc(8);
    drop(OwnStream::new(Some(at)).unwrap());
    assert_eq!(cu.calls(c"cuStreamDestroy_v2"), destroyed + 1);
    cu.free(at);
    cu.end_context(next);
    cu.enter(0);
}

#[test]
fn a_device_of_mps_is_one_by_the_driver_s_word() {
    let (_alone, cu) = alone();
    let at = cu.alloc(8);
    let stream = Stream::legacy(at).unwrap();
    let cuda = registry::of(Kind::Cuda);
    let found = [0, 1, 0].map(|value| {
        cu.attribute(133, value);
        (stream.is_by_mps().unwrap(), cuda.device_in_turns(at).is_some())
    });
    assert_eq!(found, [(false, true), (true, false), (false, true)]);
    cu.free(at);
}
