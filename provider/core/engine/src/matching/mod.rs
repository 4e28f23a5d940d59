//! Which message goes to which receive.
//!
//! libfabric's rule (fi_msg(3), fi_tagged(3)), which is MPI's: messages of one sender match in the
//! order they were sent, a message goes to the oldest posted receive it fits, a receive takes the
//! oldest waiting message it fits.

mod index;
mod queue;

use index::{ByAnyPattern, ByOwnPattern};
pub(crate) use queue::At;
use queue::Queue;

use crate::types::{ADDR_UNSPEC, Ctx, FiAddr, Pattern};

impl Pattern {
    /// Tag and mask: of an untagged pattern, a mask that ignores everything.
    #[inline(always)]
    pub(crate) fn key(&self) -> (u64, u64) {
        self.tag.unwrap_or((0, u64::MAX))
    }

    #[inline(always)]
    pub(crate) fn fits(&self, src: FiAddr, tag: u64) -> bool {
        let (want, ignore) = self.key();
        (want ^ tag) & !ignore == 0 && (self.src == ADDR_UNSPEC || self.src == src)
    }
}

/// A posted receive, as the matcher sees it.
pub(crate) trait Posted {
    fn pattern(&self) -> &Pattern;
    fn ctx(&self) -> Ctx;
}

/// A message that waits, as the matcher sees it.
pub(crate) trait Waiting {
    fn src(&self) -> FiAddr;
    fn tag(&self) -> u64;
}

/// The two queues of one receive context, for tagged or for untagged messages.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Matcher<R, M> {
    posted: Queue<R>,
    waiting: Queue<M>,
    by_own: ByOwnPattern,
    by_any: ByAnyPattern,
}

impl<R: Posted, M: Waiting> Matcher<R, M> {
    pub(crate) fn new() -> Self {
        Matcher {
            posted: Queue::new(),
            by_own: ByOwnPattern::default(),
            waiting: Queue::new(),
            by_any: ByAnyPattern::default(),
        }
    }

    /// Whether no message waits.
    #[inline]
    pub(crate) fn nothing_waits(&self) -> bool {
        self.waiting.len() == 0
    }

    /// Whether no receive is posted.
    #[inline]
    pub(crate) fn nothing_posted(&self) -> bool {
        self.posted.len() == 0
    }

    /// The receive a message is for. It stays posted: see [`Matcher::found_posted`], [`Matcher::unpost`].
    #[inline(always)]
    pub(crate) fn find_posted(&mut self, src: FiAddr, tag: u64) -> Option<At> {
        self.by_own.find(&mut self.posted, (src, tag), R::pattern, move |r| r.pattern().fits(src, tag))
    }

    /// Posts a receive, which names this source.
    #[inline(always)]
    pub(crate) fn post(&mut self, src: FiAddr, make: impl FnOnce() -> R) -> At {
        let at = self.posted.push(src, make);
        self.by_own.pushed(&self.posted, at, R::pattern);
        at
    }

    pub(crate) fn unpost(&mut self, at: At) -> Option<R> {
        self.posted.remove(at)
    }

    /// A receive that was found just now.
    #[inline(always)]
    pub(crate) fn found_posted(&self, at: At) -> Option<&R> {
        self.posted.found(at)
    }

    /// Does away with a receive that was found just now and owns nothing.
    #[inline(always)]
    pub(crate) fn forget_posted(&mut self, at: At) {
        self.posted.forget(at);
    }

    /// Takes back the oldest receive posted with this context.
    pub(crate) fn cancel(&mut self, ctx: Ctx) -> Option<R> {
        let at = self.posted.iter().find(|(_, r)| r.ctx() == ctx)?.0;
        self.posted.remove(at)
    }

    /// Takes back every receive that `pick` picks.
    pub(crate) fn unpost_all(&mut self, pick: impl Fn(&R) -> bool) -> Vec<R> {
        self.posted.places(pick).into_iter().filter_map(|at| self.posted.remove(at)).collect()
    }

    /// The oldest waiting message a pattern fits. It stays: see [`Matcher::take`].
    #[inline(always)]
    pub(crate) fn find_waiting(&mut self, pattern: &Pattern) -> Option<At> {
        let (sight, pattern) = (|m: &M| (m.src(), m.tag()), *pattern);
        self.by_any.find(&mut self.waiting, &pattern, sight, move |m| pattern.fits(m.src(), m.tag()))
    }

    /// Adds a message of this source and tag to those that wait.
    #[inline(always)]
    pub(crate) fn wait(&mut self, src: FiAddr, tag: u64, make: impl FnOnce() -> M) -> At {
        let at = self.waiting.push(src, make);
        self.by_any.pushed(&self.waiting, at, (src, tag));
        at
    }

    /// A message that was found just now.
    #[inline(always)]
    pub(crate) fn found_waiting(&mut self, at: At) -> Option<&mut M> {
        self.waiting.found_mut(at)
    }

    /// Does away with a message that was found just now and owns nothing.
    #[inline(always)]
    pub(crate) fn forget_waiting(&mut self, at: At) {
        self.waiting.forget(at);
    }

    pub(crate) fn waiting_at(&self, at: At) -> Option<&M> {
        self.waiting.get(at)
    }

    /// All posted receives, each with its number in the order in which they were posted.
    pub(crate) fn posted(&self) -> impl Iterator<Item = (u64, &R)> {
        self.posted.iter().map(|(at, r)| (at.number(), r))
    }

    /// All waiting messages, each with its number in the order in which they came.
    pub(crate) fn waiting_numbered(&self) -> impl Iterator<Item = (u64, &M)> {
        self.waiting.iter().map(|(at, m)| (at.number(), m))
    }

    /// All waiting messages.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &M> {
        self.waiting.iter().map(|(_, m)| m)
    }

    /// The waiting message that came last of those that `pick` picks.
    pub(crate) fn latest_waiting(&mut self, pick: impl Fn(&M) -> bool) -> Option<&mut M> {
        self.waiting.latest_mut(pick)
    }

    pub(crate) fn take(&mut self, at: At) -> Option<M> {
        self.waiting.remove(at)
    }

    /// Takes the oldest waiting message that `pick` picks, whatever it fits.
    pub(crate) fn take_oldest(&mut self, pick: impl Fn(&M) -> bool) -> Option<M> {
        let at = self.waiting.oldest(pick)?;
        self.waiting.remove(at)
    }

    /// Drops every waiting message that `pick` picks.
    pub(crate) fn drop_waiting(&mut self, pick: impl Fn(&M) -> bool) {
        for at in self.waiting.places(pick) {
            self.waiting.remove(at);
        }
    }

    /// Changes posted receives in place.
    pub(crate) fn edit_posted(&mut self, pick: impl Fn(&R) -> bool, edit: impl Fn(&mut R)) {
        self.by_own.forget();
        self.posted.unlist();
        for at in self.posted.places(pick) {
            if let Some(r) = self.posted.get_mut(at) {
                edit(r);
            }
        }
    }

    /// Changes waiting messages in place.
    pub(crate) fn edit_waiting(&mut self, pick: impl Fn(&M) -> bool, edit: impl Fn(&mut M)) {
        self.by_any.forget();
        self.waiting.unlist();
        for at in self.waiting.places(pick) {
            if let Some(m) = self.waiting.get_mut(at) {
                edit(m);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Copy, Debug, PartialEq)]
    struct R(Pattern, usize);
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct M(FiAddr, u64, usize);
    impl Posted for R {
        fn pattern(&self) -> &Pattern {
            &self.0
        }
        fn ctx(&self) -> Ctx {
            Ctx(self.1)
        }
    }
    impl Waiting for M {
        fn src(&self) -> FiAddr {
            self.0
        }
        fn tag(&self) -> u64 {
            self.1
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Post(Pattern),
        Arrive(FiAddr, u64),
        Cancel(usize),
        /// A source has another name from now on.
        Rename(FiAddr, FiAddr),
        /// A source is gone: its messages, or the receives that name it.
        Gone(FiAddr, bool),
    }

    /// Sources, some of which share a list, and one that no address vector has.
    fn source() -> impl Strategy<Value = FiAddr> {
        prop_oneof![6 => 0u64..3, 1 => Just(64), 1 => Just(65), 1 => Just(1 << 40)]
    }

    fn step() -> impl Strategy<Value = Step> {
        let src = prop_oneof![Just(ADDR_UNSPEC), source()];
        let mask = prop_oneof![
            8 => Just(0u64),
            4 => Just(1u64 << 32),
            4 => Just(u64::MAX),
            4 => (0u64..16).prop_map(|m| 1 << m),
            // More than there are classes.
            1 => any::<u64>(),
        ];
        prop_oneof![
            4 => (src, 0u64..6, mask).prop_map(|(src, tag, ignore)| Step::Post(Pattern { src, tag: Some((tag, ignore)) })),
            4 => (prop_oneof![9 => source(), 1 => Just(ADDR_UNSPEC)], 0u64..6).prop_map(|(src, tag)| Step::Arrive(src, tag)),
            1 => any::<prop::sample::Index>().prop_map(|i| Step::Cancel(i.index(1000))),
            1 => (0u64..3, 0u64..5).prop_map(|(from, to)| Step::Rename(from, to)),
            1 => (source(), any::<bool>()).prop_map(|(src, posted)| Step::Gone(src, posted)),
        ]
    }

    /// Looks at messages, and at receives, that a search took: [`Matcher`] asks for the source or the pattern
    /// of each.
    mod counted {
        use super::*;
        use std::cell::Cell;

        thread_local!(static LOOKS: Cell<usize> = const { Cell::new(0) });

        struct Counted<T>(T);
        impl Posted for Counted<R> {
            fn pattern(&self) -> &Pattern {
                LOOKS.set(LOOKS.get() + 1);
                &self.0.0
            }
            fn ctx(&self) -> Ctx {
                Ctx(self.0.1)
            }
        }
        impl Waiting for Counted<M> {
            fn src(&self) -> FiAddr {
                LOOKS.set(LOOKS.get() + 1);
                self.0.0
            }
            fn tag(&self) -> u64 {
                self.0.1
            }
        }

        fn looks(search: impl FnOnce() -> Option<At>) -> usize {
            LOOKS.set(0);
            assert!(search().is_some());
            LOOKS.get()
        }

        /// Of `n` messages, from as many sources or from one under as many tags, and of as many receives:
        /// most looks that one search takes, after the first.
        fn most_looks(n: u64, sources: bool, ignore: u64, any: bool) -> usize {
            let of = |i: u64| if sources { (i, 5) } else { (0, 16 * i) };
            let pattern = |i: u64| {
                let (src, tag) = of(i);
                Pattern { src: if any { ADDR_UNSPEC } else { src }, tag: Some((tag, ignore)) }
            };
            let mut m = Matcher::<Counted<R>, Counted<M>>::new();
            for i in 0..n {
                let (src, tag) = of(i);
                m.wait(src, tag, || Counted(M(src, tag, 0)));
            }
            let mut most = 0;
            for i in (0..n).rev() {
                let taken = looks(|| {
                    let at = m.find_waiting(&pattern(i))?;
                    m.take(at).map(|_| at)
                });
                most = if i + 1 == n { 0 } else { most.max(taken) };
            }
            for i in 0..n {
                m.post(pattern(i).src, || Counted(R(pattern(i), 0)));
            }
            for i in (0..n).rev() {
                let (src, tag) = of(i);
                let taken = looks(|| {
                    let at = m.find_posted(src, tag)?;
                    m.unpost(at).map(|_| at)
                });
                most = if i + 1 == n { most } else { most.max(taken) };
            }
            most
        }

        #[test]
        fn a_search_looks_at_few_of_many_messages_and_receives() {
            const MOST: u64 = if cfg!(miri) { 200 } else { 10_000 };
            for n in [1, 2, 100, MOST] {
                for ignore in [0, 1] {
                    let looks = [
                        most_looks(n, true, ignore, false),
                        most_looks(n, false, ignore, false),
                        most_looks(n, false, ignore, true),
                    ];
                    assert!(looks.iter().all(|looks| *looks <= 40), "{n} of mask {ignore:x}: {looks:?}");
                }
            }
        }
    }

    /// Programs, and steps of one: Miri is slow.
    const CASES: u32 = if cfg!(miri) { 4 } else { 300 };
    const MOST: usize = if cfg!(miri) { 50 } else { 400 };

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(CASES))]
        /// Against the rule spelled out with two plain lists. `lean` makes long queues likely.
        #[test]
        fn as_the_two_list_model(steps in prop::collection::vec(step(), 0..MOST), lean in 0..3) {
            let mut real = Matcher::<R, M>::new();
            let (mut posted, mut waiting) = (Vec::<R>::new(), Vec::<M>::new());
            for (n, s) in steps.into_iter().enumerate() {
                match s {
                    Step::Post(p) => {
                        if lean == 1 && n % 3 != 0 { continue; }
                        let model = waiting.iter().position(|m| p.fits(m.0, m.1)).map(|i| waiting.remove(i));
                        let got = real.find_waiting(&p).and_then(|at| {
                            let found = real.found_waiting(at).copied();
                            if n % 2 == 0 { real.forget_waiting(at) } else { assert_eq!(real.take(at), found) }
                            found
                        });
                        prop_assert_eq!(got, model);
                        if model.is_none() {
                            posted.push(R(p, n));
                            real.post(p.src, || R(p, n));
                        }
                    }
                    Step::Arrive(src, tag) => {
                        if lean == 2 && n % 3 != 0 { continue; }
                        let model = posted.iter().position(|r| r.0.fits(src, tag)).map(|i| posted.remove(i));
                        let got = real.find_posted(src, tag).and_then(|at| {
                            let found = real.found_posted(at).copied();
                            if n % 2 == 0 { real.forget_posted(at) } else { assert_eq!(real.unpost(at), found) }
                            found
                        });
                        prop_assert_eq!(got, model);
                        if model.is_none() {
                            waiting.push(M(src, tag, n));
                            real.wait(src, tag, || M(src, tag, n));
                        }
                    }
                    Step::Rename(from, to) => {
                        posted.iter_mut().filter(|r| r.0.src == from).for_each(|r| r.0.src = to);
                        waiting.iter_mut().filter(|m| m.0 == from).for_each(|m| m.0 = to);
                        real.edit_posted(|r| r.0.src == from, |r| r.0.src = to);
                        real.edit_waiting(|m| m.0 == from, |m| m.0 = to);
                    }
                    Step::Gone(src, true) => {
                        let gone: Vec<R> = posted.iter().copied().filter(|r| r.0.src == src).collect();
                        posted.retain(|r| r.0.src != src);
                        prop_assert_eq!(real.unpost_all(|r| r.0.src == src), gone);
                    }
                    Step::Gone(src, false) => {
                        waiting.retain(|m| m.0 != src);
                        real.drop_waiting(|m| m.0 == src);
                    }
                    Step::Cancel(which) => {
                        let Some(r) = posted.get(which % posted.len().max(1)).copied() else { continue };
                        posted.retain(|p| p.1 != r.1);
                        prop_assert_eq!(real.cancel(Ctx(r.1)), Some(r));
                    }
                }
                prop_assert_eq!((real.posted.len(), real.waiting.len()), (posted.len(), waiting.len()));
            }
        }
    }
}
