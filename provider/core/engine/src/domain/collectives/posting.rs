//! How an operation goes that is posted: by shared memory, by messages, or on several hosts by both.

use collective::{Layers, Schedule};
use hmem::Scratch;

use super::Collectives;
use super::group::Among;
use super::operation::Memory;
use super::shared::{Post, Then};
use crate::domain::opened::Opened;
use crate::types::*;
use link_api::RmaLink;

impl Post {
    /// Starts the operation, whose memory and reduction are as they are to be.
    pub(super) fn start<L: RmaLink>(
        self,
        all: &mut Collectives,
        opened: &mut Opened<L>,
        id: GroupId,
    ) -> Result<(), Error> {
        let Post { ctx, flags, shape, by, .. } = self;
        let group = all.groups.get_mut(&id.0).ok_or(Error::NotFound)?;
        if let Some(layers) = group.layers(shape) {
            if self.by_hosts(all, id, layers)? {
                all.run(opened);
            } else {
                all.run_shared(opened);
                all.settle_later(opened);
            }
            return Ok(());
        }
        let shared = group.shared.as_ref().filter(|_| group.hosts.is_none());
        let plan = shared.and_then(|shared| shared.plan(shape));
        if let Some(plan) = plan.filter(|plan| *plan.shape() == shape) {
            let (number, failed) = group.begin();
            all.post_shared(id, plan, Post { number, failed, ..self });
            all.run_shared(opened);
            all.settle_later(opened);
            return Ok(());
        }
        let (schedule, memory) = self.by_messages()?;
        let begun = group.begin();
        let post = Post { number: begun.0, failed: begun.1, ..self };
        let name = all.insert(id, begun, (ctx, flags), (schedule, Among::All), memory, by)?;
        match plan {
            Some(plan) => all.post_shared(id, plan, Post { then: Then::Begin(name), ..post }),
            None => all.ready.push(name),
        }
        all.run(opened);
        Ok(())
    }

    /// Messages between all members.
    fn by_messages(&self) -> Result<(Schedule, Memory), Error> {
        let schedule = Schedule::new(self.shape).ok_or(Error::TooBig)?;
        let scratch = Scratch::new(schedule.scratch()).ok_or(Error::Exhausted)?;
        Ok((schedule, Memory { input: self.input, result: self.result, scratch }))
    }

    /// Starts an operation of members on several hosts. Whether this member has messages to send.
    fn by_hosts(self, all: &mut Collectives, id: GroupId, layers: Layers) -> Result<bool, Error> {
        let Layers { before, between, after, room } = layers;
        let own = between.as_ref().map_or(0, |schedule| schedule.scratch());
        let scratch = Scratch::new(own.checked_add(room).ok_or(Error::TooBig)?).ok_or(Error::Exhausted)?;
        // What fails the messages fails the step that fills this, too.
        let first =
            if room > 0 { scratch.span().part(own, room).ok_or(Error::Invalid)? } else { self.result };
        let long = if Layers::is_for_shorter(&self.shape) { Some(self.by_messages()?) } else { None };
        let begun = all.groups.get_mut(&id.0).ok_or(Error::NotFound)?.begin();
        let (of, post) = ((self.ctx, self.flags), Post { number: begun.0, failed: begun.1, ..self });
        let last = match long {
            Some((schedule, memory)) => {
                Then::Begin(all.insert(id, begun, of, (schedule, Among::All), memory, self.by)?)
            }
            None => Then::End,
        };
        let name = match between {
            Some(schedule) => {
                let input = if before.is_some() { first } else { self.input };
                let memory = Memory { input, result: self.result, scratch };
                let root = self.shape.kind.has_root().then_some(self.shape.root);
                let then = if after.is_some() { Then::GoOn } else { last };
                let among = Among::Leaders { root, then };
                Some(all.insert(id, begun, of, (schedule, among), memory, self.by)?)
            }
            None => None,
        };
        match (before, name) {
            (Some(plan), _) => {
                let behind = if after.is_some() { Then::GoOn } else { last };
                let then = name.map_or(behind, Then::Begin);
                all.post_shared(id, plan, Post { result: first, then, ..post });
            }
            (None, Some(name)) => all.ready.push(name),
            (None, None) => {}
        }
        if let Some(plan) = after {
            all.post_shared(id, plan, Post { behind: name, then: last, ..post });
        }
        Ok(name.is_some())
    }
}
