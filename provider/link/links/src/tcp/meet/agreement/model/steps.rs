//! What can happen next in a state of the model.

use super::{CONNS, Message, Queue, STRANGE, Steps, World, Wrong};

impl World {
    /// All states that follow.
    pub(in super::super) fn steps(&self) -> Result<Steps, Wrong> {
        let mut steps = Vec::new();
        for at in 0..CONNS {
            self.steps_of(at, &mut steps)?;
        }
        for own in 0..2 {
            self.steps_at(own, &mut steps)?;
        }
        Ok(steps)
    }

    /// Of one connection.
    fn steps_of(&self, at: usize, steps: &mut Steps) -> Result<(), Wrong> {
        let Some(link) = &self.links[at] else { return Ok(()) };
        for side in 0..2 {
            let Some(message) = link.queues[side].0[0] else { continue };
            if !link.open[side] {
                continue;
            }
            if link.forged && side == 0 {
                let mut then = self.clone();
                let heard = then.link(at).queues[0].pop();
                if heard == Message::Verdict(None) {
                    // Or it says nothing.
                    steps.push((then.clone(), false));
                    then.say(at, 0, Message::Confirmation);
                }
                steps.push((then, true));
                continue;
            }
            let own = self.owner(at, side);
            // Nothing is read of a connection that follows another.
            if self.ends[own].next == Some(at) {
                continue;
            }
            let mut ends = vec![false];
            if message == Message::Proof {
                let channel = self.ends[own].channel.and_then(|c| self.links[c].as_ref());
                let side = usize::from(channel.is_some_and(|c| c.to == own));
                if channel.is_some_and(|c| c.queues[side].contains(Message::End)) {
                    ends.push(true);
                }
            }
            for seen in ends {
                let mut then = self.clone();
                then.hear(at, side, seen)?;
                steps.push((then, true));
            }
        }
        if link.silent {
            // The other end's kernel finds out.
            for side in (0..2).filter(|side| link.open[*side] && !link.queues[*side].contains(Message::End)) {
                let mut then = self.clone();
                then.link(at).queues[side].push(Message::End);
                steps.push((then, true));
            }
        }
        if link.forged && link.open[0] {
            let mut then = self.clone();
            then.close(at, 0, true)?;
            steps.push((then, false));
        }
        if self.left.resets > 0 && link.open == [true; 2] && !link.faulty {
            let mut then = self.clone();
            then.left.resets -= 1;
            let link = then.link(at);
            link.faulty = true;
            link.queues = [Queue::of(&[Message::End]); 2];
            steps.push((then, false));
        }
        Ok(())
    }

    /// Of one endpoint.
    fn steps_at(&self, own: usize, steps: &mut Steps) -> Result<(), Wrong> {
        let (end, peer) = (&self.ends[own], 1 - own);
        if !end.lives {
            let mut then = self.clone();
            then.ends[own].lives = true;
            steps.push((then, true));
            return Ok(());
        }
        if end.call.is_none() && !end.waits && end.channel.is_none() && end.rules.may_call(peer) {
            let mut then = self.clone();
            then.ends[own].rules.placed();
            let epoch = then.ends[own].rules.epoch();
            if self.ends[peer].lives && then.place(peer, false, end.instance, epoch).is_some() {
                then.ends[own].call = self.free();
                then.ends[own].rules.said(peer);
                steps.push((then, true));
            }
        }
        if end.waits {
            let mut then = self.clone();
            then.ends[own].waits = false;
            steps.push((then, true));
        }
        if end.next.is_some() {
            let mut then = self.clone();
            then.end(own, false)?;
            steps.push((then, true));
        }
        let left = &self.left;
        let mut fault = |is_left: bool, how: &dyn Fn(&mut World) -> Result<(), Wrong>| {
            if is_left {
                let mut then = self.clone();
                how(&mut then)?;
                steps.push((then, false));
            }
            Ok(())
        };
        fault(left.late > 0 && end.call.is_some(), &|then| {
            then.left.late -= 1;
            then.drop_call(own)
        })?;
        fault(left.ends > 0, &|then| {
            then.left.ends -= 1;
            then.die(own, false);
            Ok(())
        })?;
        fault(left.power > 0, &|then| {
            then.left.power -= 1;
            then.die(own, true);
            Ok(())
        })?;
        fault(left.cuts > 0 && end.channel.is_some(), &|then| {
            // The application ends it.
            then.left.cuts -= 1;
            if let Some(at) = then.ends[own].channel {
                then.link(at).faulty = true;
            }
            then.end(own, true)
        })?;
        fault(left.forgets > 0 && end.channel.is_none() && end.next.is_none(), &|then| {
            then.left.forgets -= 1;
            then.drop_call(own)?;
            then.ends[own].waits = false;
            then.ends[own].rules.forget();
            Ok(())
        })?;
        fault(left.forgets > 0, &|then| {
            then.left.forgets -= 1;
            then.ends[own].rules.forget_another();
            Ok(())
        })?;
        for instance in [self.ends[peer].instance, STRANGE] {
            fault(left.forged > 0, &|then| {
                then.left.forged -= 1;
                then.place(own, true, instance, 9);
                Ok(())
            })?;
        }
        Ok(())
    }
}
