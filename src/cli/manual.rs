//! Manual pages: one with everything, or one for each command.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use clap_mangen::Man;

use super::output::{Ended, failed, print_bytes};

/// A page for each command and its subcommands, which cite each other, in `folder`.
pub(super) fn write_pages(command: clap::Command, folder: &Path) -> Ended {
    let written = std::fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(command, folder));
    written.map_err(|cause| failed(format_args!("{}: {cause}", folder.display())))?;
    Ok(ExitCode::SUCCESS)
}

/// One page with a section for each command that does something. It cites no other page.
pub(super) fn print_page(command: clap::Command) -> Ended {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let mut page = Vec::new();
    write_page(&command, &mut page).map_err(failed)?;
    print_bytes(&page)
}

fn write_page(command: &clap::Command, page: &mut impl Write) -> std::io::Result<()> {
    let man = Man::new(command.clone());
    man.render_title(page)?;
    man.render_name_section(page)?;
    man.render_synopsis_section(page)?;
    man.render_description_section(page)?;
    for subcommand in command.get_subcommands() {
        write_sections(subcommand, command.get_name(), page)?;
    }
    Ok(())
}

fn write_sections(command: &clap::Command, above: &str, page: &mut impl Write) -> std::io::Result<()> {
    let name = format!("{above} {}", command.get_name());
    if command.has_subcommands() {
        return command.get_subcommands().try_for_each(|subcommand| write_sections(subcommand, &name, page));
    }
    writeln!(page, ".SH {}", name.to_ascii_uppercase())?;
    let man = Man::new(command.clone());
    man.render_description_section(page)?;
    man.render_synopsis_section(page)?;
    man.render_options_section(page)?;
    man.render_extra_section(page)
}
