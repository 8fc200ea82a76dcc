//! Tells a newcomer what happens, line by line.

/// Writes the story to standard output, or nowhere.
pub(super) struct Teller {
    quiet: bool,
}

impl Teller {
    pub(super) const fn new(quiet: bool) -> Self {
        Self { quiet }
    }

    /// Any line.
    pub(super) fn line(&self, text: &str) {
        if !self.quiet {
            // A reader that went away is no reason to stop checking.
            let _ = std::io::Write::write_fmt(&mut std::io::stdout(), format_args!("{text}\n"));
        }
    }

    /// The title of a story.
    pub(super) fn title(&self, number: usize, title: &str) {
        self.line(&format!("\n{number}. {title}"));
    }

    /// What somebody does.
    pub(super) fn does(&self, text: &str) {
        self.line(&format!("   do    {text}"));
    }

    /// What the link does.
    pub(super) fn link(&self, text: &str) {
        self.line(&format!("   link  {text}"));
    }

    /// What came of it.
    pub(super) fn sees(&self, text: &str) {
        self.line(&format!("   see   {text}"));
    }
}
