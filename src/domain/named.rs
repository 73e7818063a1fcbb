//! Enums whose variants have names: labels of metrics, words of the API and of files.

/// Declares such an enum: each variant with its name.
macro_rules! named {
    ($(#[$meta:meta])* $vis:vis enum $type:ident { $($(#[$of:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        $vis enum $type { $($(#[$of])* $variant,)+ }

        impl $type {
            /// All of them, in the order of their discriminants.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            /// The one of this name.
            #[allow(dead_code, reason = "not all of them are read")]
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|one| one.name() == name)
            }

            /// Its name.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }
        }
    };
}
pub(crate) use named;
