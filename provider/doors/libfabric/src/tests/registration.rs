//! What a registration of host memory asks the kernel for: nothing, after the first.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use super::*;

/// System calls that were caught, and the last one's number.
static CAUGHT: AtomicUsize = AtomicUsize::new(0);
static LAST: AtomicUsize = AtomicUsize::new(0);

extern "C" fn caught(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    CAUGHT.fetch_add(1, SeqCst);
    // SAFETY: what the kernel gives a handler with SA_SIGINFO; the register holds what the call returns.
    unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        LAST.store(registers[libc::REG_RAX as usize] as usize, SeqCst);
        registers[libc::REG_RAX as usize] = -i64::from(libc::ENOSYS);
    }
}

/// From now on this thread's system calls are caught, but those of locks, of malloc(3), and of its end.
fn catch_system_calls() {
    const LET: [libc::c_long; 10] = [
        libc::SYS_futex,
        libc::SYS_brk,
        libc::SYS_mmap,
        libc::SYS_munmap,
        libc::SYS_mremap,
        libc::SYS_madvise,
        libc::SYS_rt_sigreturn,
        libc::SYS_rt_sigprocmask,
        libc::SYS_sigaltstack,
        libc::SYS_exit,
    ];
    let (load, equal, ret) = (0x20, 0x15, 0x06);
    let op = |code, k, jt, jf| libc::sock_filter { code, jt, jf, k };
    let mut filter = vec![op(load, 0, 0, 0)];
    for (n, call) in LET.into_iter().enumerate() {
        filter.push(op(equal, call as u32, (LET.len() - n) as u8, 0));
    }
    filter.push(op(ret, libc::SECCOMP_RET_TRAP, 0, 0));
    filter.push(op(ret, libc::SECCOMP_RET_ALLOW, 0, 0));
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: a handler with three arguments, a filter that lives during the call, for this thread alone.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = caught as extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) as usize;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGSYS, &action, ptr::null_mut()), 0);
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program), 0);
    }
}

#[test]
fn a_registration_of_host_memory_makes_no_system_call() {
    let w = World::new(Setting::default());
    let domain = Shared(w.domain);
    let mut memory = vec![0u8; 1 << 20];
    let at = Shared(memory.as_mut_ptr());
    let register = move |key: u64| {
        let mut mr = ptr::null_mut();
        let access = fi::FI_REMOTE_READ | fi::FI_REMOTE_WRITE;
        let (domain, at) = (domain.get(), at.get().cast::<c_void>());
        let done = call!(domain, mr.reg(at, 4096, access, 0, key, 0, &mut mr, NO));
        if done == 0 { close(mr) } else { done }
    };
    assert_eq!(register(1), 0);
    let thread = std::thread::spawn(move || {
        register(1);
        catch_system_calls();
        // The catch works.
        // SAFETY: takes nothing.
        unsafe { libc::syscall(libc::SYS_getppid) };
        let first = CAUGHT.swap(0, SeqCst);
        (first, (1..200).all(|key| register(key) == 0), CAUGHT.load(SeqCst))
    });
    let (first, registered, calls) = thread.join().unwrap();
    assert_eq!((first, registered), (1, true));
    assert_eq!(calls, 0, "the last one was number {}", LAST.load(SeqCst));
}
