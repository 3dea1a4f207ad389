//! Controls.
