//! How many messages two endpoints have sent each other when one of them closes.

/// The farewells of both sides, and their answers.
#[derive(Debug, Default)]
pub(crate) struct Farewell {
    /// How many messages the peer has sent, as it says, and whether the answer was sent that all arrived.
    theirs: Option<(u32, bool)>,
    /// How many messages this side has sent, as it said, and whether the peer has answered.
    ours: Option<u32>,
    answered: bool,
}

impl Farewell {
    /// The peer has sent so many messages, and sends no more.
    pub(crate) fn hear(&mut self, sent: u32) {
        self.theirs = Some((sent, false));
    }

    /// Whether either side has said farewell.
    pub(crate) fn is_said(&self) -> bool {
        self.ours.is_some() || self.theirs.is_some()
    }

    /// Whether the peer has said farewell.
    pub(crate) fn is_heard(&self) -> bool {
        self.theirs.is_some()
    }

    /// Whether the peer has said farewell, and has no answer yet.
    pub(crate) fn owes_answer(&self) -> bool {
        self.theirs.is_some_and(|(_, answered)| !answered)
    }

    /// The answer is sent.
    pub(crate) fn answer(&mut self) {
        if let Some((_, answered)) = &mut self.theirs {
            *answered = true;
        }
    }

    /// Whether all that the peer has sent, as it says, is among the `arrived` messages.
    pub(crate) fn is_complete(&self, arrived: u32) -> bool {
        // Signed, since what arrived behind it would be more.
        self.theirs.is_none_or(|(sent, _)| sent.wrapping_sub(arrived) as i32 <= 0)
    }

    /// This side has sent so many messages.
    pub(crate) fn say(&mut self, sent: u32) {
        (self.ours, self.answered) = (Some(sent), false);
    }

    /// The peer has answered.
    pub(crate) fn hear_answer(&mut self) {
        self.answered = true;
    }

    /// Whether a farewell of this side is not answered yet.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.ours.is_some() && !self.answered
    }

    /// Whether the peer has answered that it has so many messages.
    pub(crate) fn is_answered(&self, sent: u32) -> bool {
        self.answered && self.ours == Some(sent)
    }
}
