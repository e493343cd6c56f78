# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0
#
# Pages as Doxygen reads them for the site. Headings get their anchors; links to files that are no pages
# become their text; links to a heading name it alone.
1,/^-->$/d
/^#{2,6} /{
  h
  s/^#+ //
  s/.*/\L&/
  s/[^a-z0-9 _-]//g
  s/ /-/g
  G
  s/^([^\n]*)\n(.*)$/\2 {#\1}/
}
s/\[([^]]*)\]\((\.\.\/)?(include|examples|bench|tests|findings|cmake|\.github|CONTRIBUTING|CITATION|LICENSE)[^)]*\)/\1/g
s/\]\((\.\.\/)?(docs\/)?[A-Za-z_]+\.md#/](#/g
s/\]\(\.\.\/README\.md\)/](index.html)/g
s/\]\((docs\/)?([A-Za-z_0-9]+)\.md\)/](md_docs_\2.html)/g
s/\]\(docs\/pictures\//](/g
s/^```(diff|sh|cmake)$/```/
s/\[`([^]`]*)`\]\(/[\1](/g
