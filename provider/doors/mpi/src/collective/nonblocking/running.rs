//! A collective whose outcome is known, under way: phases of messages and kernels, or the MPI's own.

use core::ffi::c_int;
use std::sync::Arc;

use device_ops::collective::Phase;

use super::request::Promise;
use super::words::Words;
use crate::args::{Args, Style};
use crate::buffer::Mirrors;
use crate::collective::marks::Marks;
use crate::collective::messages::{FAILED, Messages, abandon, code_of_completed, is_complete};
use crate::collective::part::Part;
use crate::counts::Path;
use crate::library::Library;
use crate::refuse;
use crate::row::Row;

/// A call of the program's.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) row: &'static Row,
    pub(super) words: Arc<Words>,
    pub(super) promise: Promise,
    pub(super) begin: Begin,
}

/// Begins the MPI's own call, which returns a request: with mirrors, which are copied back when it has
/// completed; in `Err`, a code that was not raised.
///
/// # Safety
/// The arguments are those of the row's call in C, and valid until it has completed.
pub(crate) type Begin =
    unsafe fn(&Library, &'static Row, &mut Args<'_>, function: usize) -> Result<Mirrors, c_int>;

impl Call {
    /// Whether the ranks agree in two steps.
    pub(super) fn is_of_two(&self) -> bool {
        self.row.plan.is_some_and(|plan| plan.what.is_vector() && plan.root.is_none())
    }

    /// Ends it with an error that has these words.
    pub(super) fn fail(&self, library: &Library, why: &str) {
        self.row.counts.add(Path::Refused);
        self.promise.keep(refuse::code(library.abi.errors.other, why));
    }
}

/// By what it is done.
#[derive(Debug)]
enum By {
    /// The ranks' devices: the phase that is next, and the requests of the one before it.
    Devices { part: Part, next: usize, requests: Vec<u64>, tag: c_int },
    /// The MPI: a request of its own, with the mirrors of device memory.
    Mpi { request: u64, mirrors: Mirrors },
}

/// One of them.
#[derive(Debug)]
pub(super) struct Running {
    call: Call,
    by: By,
    /// The code of the first request that has failed.
    failed: Option<c_int>,
}

impl Running {
    /// Begins it; `None` where it has ended with an error at once.
    ///
    /// # Safety
    /// The buffers are valid until the request completes, and the MPI's transport takes device memory where
    /// there is a part.
    pub(super) unsafe fn begin(
        library: &Library,
        call: Call,
        part: Option<Part>,
        tag: c_int,
        messages: &Messages,
    ) -> Option<Running> {
        if let Some(part) = part {
            call.row.counts.add(Path::Devices);
            let by = By::Devices { part, next: 0, requests: Vec::new(), tag };
            return Some(Running { call, by, failed: None });
        }
        let mut request = 0u64;
        let mut all = call.words.all.clone();
        if let Some(comm) = all.last_mut() {
            *comm = messages.comm();
        }
        all.push((&raw mut request) as usize);
        let name = call.row.plan.map(|plan| plan.what.nonblocking());
        let function = name.and_then(|name| library.function(name));
        let mut args = Args { words: &mut all, style: Style::C, abi: &library.abi };
        let begun = match function {
            // SAFETY: the caller's promise: the call's arguments, in C.
            Some(function) => unsafe { (call.begin)(library, call.row, &mut args, function) },
            None => Err(library.abi.errors.other),
        };
        match begun {
            Ok(mirrors) => Some(Running { call, by: By::Mpi { request, mirrors }, failed: None }),
            Err(code) => {
                call.promise.keep(code);
                None
            }
        }
    }

    /// The messages that it waits for.
    pub(super) fn messages(&mut self) -> &mut [u64] {
        match &mut self.by {
            By::Devices { requests, .. } => requests,
            By::Mpi { .. } => &mut [],
        }
    }

    /// Asks for the MPI's own request, if that is not known to be complete: whether it is still under way.
    pub(super) fn is_awaiting(&mut self, library: &Library) -> bool {
        let By::Mpi { request, .. } = &mut self.by else { return false };
        if is_complete(&library.abi, std::slice::from_ref(request)) {
            return false;
        }
        // SAFETY: a request of this library's, and the lane's communicator answers errors.
        let code = unsafe { code_of_completed(library, request) };
        self.failed = self.failed.or(code.filter(|code| *code != 0));
        code.is_none()
    }

    /// Goes on with it, once its requests were tested, of which the first one that failed has this code.
    /// Whether it is over: all its requests are complete then, whether or not one has failed.
    ///
    /// # Safety
    /// As for [`Running::begin`].
    pub(super) unsafe fn poll(
        &mut self,
        library: &Library,
        messages: &Messages,
        marks: &Marks,
        failed: Option<c_int>,
    ) -> bool {
        let (abi, other) = (&library.abi, library.abi.errors.other);
        self.failed = self.failed.or(failed);
        let is_over = match &self.by {
            By::Devices { requests, .. } => is_complete(abi, requests),
            By::Mpi { request, .. } => is_complete(abi, std::slice::from_ref(request)),
        };
        if !is_over {
            return false;
        }
        // SAFETY: the caller's promise; so below.
        let done = unsafe {
            match &mut self.by {
                By::Mpi { mirrors, .. } => self.failed.map_or_else(
                    || mirrors.copy_back(0).map_err(|failure| refuse::code_of(library, failure)),
                    Err,
                ),
                By::Devices { part, next, requests, tag } => loop {
                    // A rank that has failed goes on, and sends what it has: none waits for it.
                    if self.failed.is_some() {
                        marks.mark_failed();
                    }
                    let Some(phase) = part.phases().get(*next) else {
                        let other = || marks.one_failed().map(|_| refuse::code(other, FAILED));
                        break self.failed.or_else(other).map_or(Ok(()), Err);
                    };
                    *next += 1;
                    match phase {
                        Phase::Exchange(sends, receives) => {
                            let begun = messages.begin(abi, sends, receives, *tag, requests);
                            self.failed = self.failed.or(begun.err());
                            return false;
                        }
                        other => {
                            if !part.compute(other) {
                                marks.mark_failed();
                            }
                        }
                    }
                },
            }
        };
        self.end(done);
        true
    }

    /// Ends it with an error if devices do it: a rank is gone. Whether it is over.
    pub(super) fn give_up(&mut self, library: &Library, why: &str) -> bool {
        let By::Devices { part, requests, next, .. } = &mut self.by else { return false };
        if !is_complete(&library.abi, requests) {
            part.abandon();
            if let Some(Phase::Exchange(_, receives)) = part.phases().get(next.wrapping_sub(1)) {
                abandon(&library.abi, std::mem::take(requests), receives);
            }
        }
        self.end(Err(refuse::code(library.abi.errors.other, why)));
        true
    }

    fn end(&self, done: Result<(), c_int>) {
        if done.is_err() {
            self.call.row.counts.add(Path::Refused);
        }
        self.call.promise.keep(done.err().unwrap_or(0));
    }
}
