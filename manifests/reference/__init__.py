"""``make reference``: the generated parts of the pages in ``docs/reference``.

Each module has the generator of the page of its name, with the function for each generated part of
the page in ``PARTS``. ``pages`` puts the parts between the marks of a page; what stands outside
the marks is written by hand. :data:`manifests.reference.__main__.PAGES` lists the modules.
"""
