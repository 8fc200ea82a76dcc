//! The only place that reads the operating system's clock.

use proto::time::Time;
use std::time::SystemTime;

/// Tells the time to the driver.
pub trait Clock: Send + Sync + 'static {
    /// Now.
    fn now(&self) -> Time;
}

/// Wall time read once at start, then the monotonic clock: a step of the wall clock neither fires
/// deadlines early nor moves them. Never behind `floor`, the last time the store has seen.
///
/// It follows tokio's clock, so that a test on paused time sees virtual time.
#[derive(Debug)]
pub struct SystemClock {
    start: tokio::time::Instant,
    wall: Time,
}

impl SystemClock {
    /// A clock that starts at the wall time, or at `floor` if that is later.
    #[must_use]
    pub fn starting_at_least(floor: Time) -> Self {
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let wall = Time::default().after(unix);
        Self { start: tokio::time::Instant::now(), wall: wall.max(floor) }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Time {
        self.wall.after(self.start.elapsed())
    }
}
