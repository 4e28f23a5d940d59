//! Strangers that were refused: they are not to fill the log.

/// Lines of the log before it has one each time that they are twice as many.
const LINES: u32 = 16;

/// How many were refused.
#[derive(Clone, Copy, Debug, Default)]
pub struct Refusals(u32);

impl Refusals {
    /// Once more; whether the log has a line at the level of warnings.
    pub fn is_logged(&mut self) -> bool {
        self.0 = self.0.saturating_add(1);
        self.0 <= LINES || self.0.is_power_of_two()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_has_sixteen_lines_and_then_those_of_doublings() {
        let mut refused = Refusals::default();
        let logged: Vec<u32> = (1..=1000).filter(|_| refused.is_logged()).collect();
        assert_eq!(logged[..16], (1..=16).collect::<Vec<_>>());
        assert_eq!(logged[16..], [32, 64, 128, 256, 512]);
    }
}
