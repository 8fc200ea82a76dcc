//! One declaration per setting: field, documentation, default, range and sample line cannot drift
//! apart, since all come from the same place.

use super::error::Fault;

/// A table of the configuration file whose settings all have defaults.
pub(crate) trait Section: Default + serde::Serialize {
    /// Name of the table.
    const NAME: &'static str;
    /// What the table is about, one line of text each.
    const ABOUT: &'static [&'static str];
    /// Its settings, in order.
    const KEYS: &'static [Key];

    /// Checks each setting against its range.
    ///
    /// # Errors
    /// The first setting out of range.
    fn check(&self) -> Result<(), Fault>;
}

/// What the sample says about one setting.
pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(crate) doc: &'static [&'static str],
    /// None, when any value of the type will do, or one such as `1 to 60000`.
    pub(crate) range: fn() -> Vec<String>,
}

/// A range in words.
pub(crate) fn words<T: std::fmt::Debug>(min: T, max: T) -> String {
    format!("{min:?} to {max:?}")
}

/// `section! { /// About. NAME "name" { /// Doc. field: Type = default, min => max; } }`
macro_rules! section {
    (
        $(#[doc = $about:literal])+
        $name:ident $table:literal {
            $(
                $(#[doc = $doc:literal])+
                $key:ident: $type:ty = $default:expr $(, $min:expr => $max:expr)?;
            )+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug, PartialEq, serde::Deserialize, serde::Serialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {
            $(
                $(#[doc = $doc])+
                #[doc = ""]
                #[doc = concat!(
                    "Default `", stringify!($default), "`"
                    $(, ", allowed `", stringify!($min), "` to `", stringify!($max), "`")?, "."
                )]
                pub $key: $type,
            )+
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($key: $default),+ }
            }
        }

        impl $crate::config::section::Section for $name {
            const NAME: &'static str = $table;
            const ABOUT: &'static [&'static str] = &[$($about),+];
            const KEYS: &'static [$crate::config::section::Key] = &[$(
                $crate::config::section::Key {
                    name: stringify!($key),
                    doc: &[$($doc),+],
                    range: || vec![$($crate::config::section::words::<$type>($min, $max))?],
                },
            )+];

            fn check(&self) -> Result<(), $crate::config::error::Fault> {
                $($(
                    if !($min..=$max).contains(&self.$key) {
                        return Err($crate::config::error::Fault::new(
                            [stringify!($key)],
                            format!("{} is {:?}", stringify!($key), self.$key),
                            format!(
                                "use a value from {}",
                                $crate::config::section::words::<$type>($min, $max)
                            ),
                        ));
                    }
                )?)+
                Ok(())
            }
        }
    };
}
pub(crate) use section;
