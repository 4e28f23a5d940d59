//! An operation by shared memory under way, and the steps of a group one after the other.

use crate::shared::{Plan, Put, Take};

/// The slots of all members, as one member has them.
pub trait Slots {
    type Error;

    /// Whether a member has published this step; the error, if it never will.
    fn arrived(&self, member: usize, step: u64) -> Result<bool, Self::Error>;

    /// The last step that a member says to have finished.
    fn finished(&self, member: usize) -> u64;

    /// This member is about to fill its slot, of which others have finished the last use, or an error that
    /// keeps it from that.
    fn begin(&self, step: u64) -> Result<(), Self::Error>;

    /// Of the bytes of the slot `used` are in use in this step.
    fn put(&self, step: u64, used: usize, put: &Put) -> Result<(), Self::Error>;

    /// Takes what a member has published in this step.
    fn take(&self, step: u64, used: usize, take: &Take) -> Result<(), Self::Error>;

    fn publish(&self, step: u64);

    /// This member takes nothing more of this step and those before.
    fn finish(&self, step: u64);
}

/// How far a member is in the steps of a group.
#[derive(Clone, Copy, Debug)]
pub struct Sequence {
    /// The last step that this member has finished.
    step: u64,
    /// All members have finished this one.
    finished: u64,
    /// From the step that fills a slot to the one that all have finished by then.
    lag: u64,
}

impl Sequence {
    /// Of members that have so many slots each.
    pub fn new(slots: u64) -> Sequence {
        // What is taken of the step before keeps one slot more.
        Sequence { step: 0, finished: 0, lag: slots - 1 }
    }

    /// Whether this member may fill the slot of a step.
    fn may_fill<S: Slots>(&mut self, step: u64, plan: &Plan, slots: &S) -> bool {
        if self.finished + self.lag >= step {
            return true;
        }
        let shape = plan.shape();
        let mut least = self.step;
        for member in (0..shape.members).filter(|m| *m != shape.rank) {
            least = least.min(slots.finished(member));
            if least + self.lag < step {
                return false;
            }
        }
        self.finished = least;
        true
    }
}

/// What comes next of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Fill,
    Before,
    After,
}

/// An operation of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    plan: Plan,
    /// Steps that are over.
    done: usize,
    next: Next,
    /// Which thing of the next ones.
    k: usize,
}

impl Run {
    pub fn new(plan: Plan) -> Run {
        Run { plan, done: 0, next: Next::Fill, k: 0 }
    }

    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Goes on as far as that is possible without waiting; whether it is over.
    pub fn go_on<S: Slots>(&mut self, sequence: &mut Sequence, slots: &S) -> Result<bool, S::Error> {
        while self.done < self.plan.steps() {
            let (step, n) = (sequence.step + 1, self.done);
            let used = self.plan.used(n);
            if self.next == Next::Fill {
                if self.plan.publishes(n) {
                    if !sequence.may_fill(step, &self.plan, slots) {
                        return Ok(false);
                    }
                    slots.begin(step)?;
                    for k in 0.. {
                        let Some(put) = self.plan.put(n, k) else { break };
                        slots.put(step, used, &put)?;
                    }
                }
                (self.next, self.k) = (Next::Before, 0);
            }
            if self.next == Next::Before {
                while let Some(take) = self.plan.before(n, self.k) {
                    if !self.take(step, used, &take, slots)? {
                        return Ok(false);
                    }
                }
                if self.plan.publishes(n) {
                    slots.publish(step);
                }
                (self.next, self.k) = (Next::After, 0);
            }
            while let Some(take) = self.plan.after(n, self.k) {
                if !self.take(step, used, &take, slots)? {
                    return Ok(false);
                }
            }
            if !self.plan.publishes(n) {
                // Nothing is taken of it, but a member that expects something finds what was posted here.
                slots.publish(step);
            }
            if self.plan.is_joint(n) {
                sequence.finished = step - 1;
            } else {
                slots.finish(step);
            }
            sequence.step = step;
            (self.done, self.next, self.k) = (n + 1, Next::Fill, 0);
        }
        Ok(true)
    }

    /// Whether it was there.
    fn take<S: Slots>(&mut self, step: u64, used: usize, take: &Take, slots: &S) -> Result<bool, S::Error> {
        if !slots.arrived(take.member, step)? {
            return Ok(false);
        }
        slots.take(step, used, take)?;
        self.k += 1;
        Ok(true)
    }
}
